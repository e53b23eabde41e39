"""The Date header of an answer, to which our services compare their clocks."""

import asyncio
import time
from email.utils import parsedate_to_datetime

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import POLL_S
from tests.contract.kube.target import Target


async def test_an_answer_has_the_date_of_its_second(kube: KubeHttp, target: Target) -> None:
    """Over more than a second, every answer has the right second, at whatever fraction of a second the server was
    started."""
    if "//127.0.0.1:" not in target.url:
        pytest.skip("the server's machine has a clock of its own")
    wrong, dates = list[tuple[float, int, float]](), set[int]()
    while len(dates) < 3:
        sent = time.time()  # noqa: TID251 - compared with a server of this machine
        answer = await kube.get("/version")
        received = time.time()  # noqa: TID251
        date = int(parsedate_to_datetime(answer.headers["date"]).timestamp())
        dates.add(date)
        if not int(sent) <= date <= received:
            wrong.append((sent, date, received))
        await asyncio.sleep(POLL_S)
    assert wrong == []
