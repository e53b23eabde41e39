"""The program of the ranks of the demo's gang: a ring all-reduce over sockets, in plain Python.

It imports only the standard library, because the launch ships it as a file. It reads only the environment that every
gang gets (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE). The ranks meet at rank 0, learn each other's addresses, form a
ring, and sum a vector of which no rank has the sum. First every rank computes the sum of one part (reduce-scatter),
then the parts are passed around the ring (all-gather). Each rank prints the sum of its result; equal numbers on all
ranks show that every byte arrived.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

import array
import json
import os
import socket
import struct
import sys
import threading
import time

LENGTH = 200_000
ROUNDS = 3
MEET_S = 30.0
HEAD = struct.Struct("!I")


def main() -> int:
    """Run one rank; return the exit code."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = os.environ.get("SLIPWAY_POD_IP") or "127.0.0.1"
    with socket.create_server((own, 0)) as listener:
        table = meet(rank, world, (own, listener.getsockname()[1]))
        print(f"rank {rank} of {world} at {own}: found {len(table) - 1} others through {os.environ['MASTER_ADDR']}")
        with reach(table[(rank + 1) % world]) as following:
            listener.settimeout(MEET_S)
            preceding, _ = listener.accept()
            with preceding:
                return rounds(rank, world, preceding, following)


def rounds(rank: int, world: int, preceding: socket.socket, following: socket.socket) -> int:
    """Reduce `ROUNDS` vectors; return 1 when a sum is wrong, else 0."""
    for number in range(1, ROUNDS + 1):
        begin = time.monotonic()
        vector = array.array("d", (float((rank + 1) * number * (index % 7)) for index in range(LENGTH)))
        sent = all_reduce(vector, rank, world, preceding, following)
        total, wanted = sum(vector), expected(world) * number
        took_ms = (time.monotonic() - begin) * 1000
        verdict = "ok" if total == wanted else f"WRONG, expected {wanted:.0f}"
        print(f"round {number}: sum {total:.0f} {verdict}, {sent / 1e6:.1f} MB sent in {took_ms:.0f} ms", flush=True)
        if total != wanted:
            return 1
    return 0


def expected(world: int) -> float:
    """Return the sum of the reduced vector of the first round."""
    return float(sum(range(1, world + 1)) * sum(index % 7 for index in range(LENGTH)))


def meet(rank: int, world: int, own: tuple[str, int]) -> list[tuple[str, int]]:
    """Return the addresses of all ranks, by rank; rank 0 collects and distributes them."""
    master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank != 0:
        with reach(master) as door:
            send(door, json.dumps([rank, own]).encode())
            return [(host, port) for host, port in json.loads(receive(door))]
    found: dict[int, tuple[str, int]] = {0: own}
    guests: list[socket.socket] = []
    with socket.create_server(master, backlog=world) as door:
        door.settimeout(MEET_S)
        while len(found) < world:
            guest, _ = door.accept()
            number, address = json.loads(receive(guest))
            found[number] = (address[0], address[1])
            guests.append(guest)
    table = [found[each] for each in range(world)]
    for guest in guests:
        with guest:
            send(guest, json.dumps(table).encode())
    return table


def reach(address: tuple[str, int]) -> socket.socket:
    """Connect to an address; retry for `MEET_S`, because the other rank may not listen yet."""
    until = time.monotonic() + MEET_S
    while True:
        try:
            return socket.create_connection(address, timeout=MEET_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def all_reduce(
    vector: "array.array[float]", rank: int, world: int, preceding: socket.socket, following: socket.socket
) -> int:
    """Sum `vector` over all ranks, in place; return the number of bytes that this rank sent."""
    bounds = [LENGTH * part // world for part in range(world + 1)]
    sent = 0
    for is_reducing in (True, False):
        for step in range(world - 1):
            out = (rank - step if is_reducing else rank + 1 - step) % world
            into = (out - 1) % world
            part = vector[bounds[out] : bounds[out + 1]].tobytes()
            got = array.array("d")
            got.frombytes(exchange(preceding, following, part))
            sent += len(part)
            first, last = bounds[into], bounds[into + 1]
            if is_reducing:
                got = array.array("d", (one + other for one, other in zip(vector[first:last], got, strict=True)))
            vector[first:last] = got
    return sent


def exchange(preceding: socket.socket, following: socket.socket, part: bytes) -> bytes:
    """Send to the next rank and receive from the previous one at once; else full buffers would block the ring."""
    sender = threading.Thread(target=send, args=(following, part))
    sender.start()
    got = receive(preceding)
    sender.join()
    return got


def send(to: socket.socket, payload: bytes) -> None:
    """Send one message."""
    to.sendall(HEAD.pack(len(payload)) + payload)


def receive(origin: socket.socket) -> bytes:
    """Receive one message."""
    (size,) = HEAD.unpack(exactly(origin, HEAD.size))
    return exactly(origin, size)


def exactly(origin: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes."""
    parts: list[bytes] = []
    while size:
        part = origin.recv(min(size, 1 << 16))
        if not part:
            raise ConnectionError("a neighbour has left the ring")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main())
