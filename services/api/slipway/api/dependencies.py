"""Resolves the dependencies of a launch: its `after` names allocations, which are stored by their ids.

Owns the refusals. A launch can wait only for allocations that exist, so two allocations cannot wait for each other. If
a dependency has already ended, its result is stored with the new allocation, because the ended one may be deleted soon.
"""

from collections.abc import Iterable

from slipway.api.decoding import summary
from slipway.api.ports import Kube
from slipway.api.schemas import LaunchBody, LaunchDependency
from slipway.crd.dependencies import ending, is_dependency_target, is_met, names_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import AFTER_MAX, Allocation, Dependency
from slipway.errors import FieldError, InvalidError, NotFoundError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.ids import is_name
from slipway.model.lifecycle import Phase
from slipway.model.reasons import DependencyEnd

BY_NAME_MAX = 8
"""Up to this number, allocations are read by name; for more, or for a job, the workspace is listed."""


async def named(kube: Kube, body: LaunchBody) -> list[Dependency]:
    """Return the dependencies in `after` of a launch, each by its AllocationID.

    Raises:
        InvalidError: with pointers into the body.
    """
    errors = [error for index, each in enumerate(body.after) for error in _form_errors(f"/after/{index}", each)]
    if not errors:
        known = await _known(kube, body)
        found, errors = _found(body, known)
        if not errors:
            return found
    raise InvalidError(summary("the launch", tuple(errors)), fields=tuple(errors))


def _form_errors(at: str, each: LaunchDependency) -> Iterable[FieldError]:
    if bool(each.allocation) == bool(each.job):
        yield FieldError(at, "name an allocation or a job: {allocation: ID} or {job: NAME}")
    if each.result is not None:
        yield FieldError(f"{at}/result", "written by the API; leave it out")


async def _known(kube: Kube, body: LaunchBody) -> list[Allocation]:
    """Return the named allocations that exist in the workspace; all allocations of it when the workspace is listed."""
    names = list(dict.fromkeys(name for each in body.after for name in names_of(each.allocation) if is_name(name)))
    if len(names) > BY_NAME_MAX or any(each.job for each in body.after):
        return (await kube.list(ALLOCATIONS, namespace=body.workspace)).items
    found: list[Allocation] = []
    for name in names:
        try:
            found.append(await kube.get(ALLOCATIONS, name, namespace=body.workspace))
        except NotFoundError:
            continue
    return found


def _found(body: LaunchBody, known: list[Allocation]) -> tuple[list[Dependency], list[FieldError]]:
    made: dict[str, Dependency] = {}
    errors: list[FieldError] = []
    for index, each in enumerate(body.after):
        field = "job" if each.job else "allocation"
        at = f"/after/{index}/{field}"
        meant = _meant(each, known)
        if not meant:
            errors.append(FieldError(at, _nothing(each, body.workspace)))
        for allocation in meant:
            dependency = _dependency(allocation, each.when)
            before = made.setdefault(dependency.allocation, dependency)
            if before.when is not dependency.when:
                detail = f"{dependency.allocation} is named twice, with different values of when: leave one of them out"
                errors.append(FieldError(at, detail))
            elif dependency.result is not None and not is_met(each.when, dependency.result):
                so_far = ending(dependency.allocation, dependency.result)
                detail = f"{so_far}, but this launch starts only if it {each.when}; leave it out, or write when: ended"
                errors.append(FieldError(at, detail))
                break
    if len(made) > AFTER_MAX:
        errors.append(FieldError("/after", f"names {len(made)} allocations; at most {AFTER_MAX} can be waited for"))
    return list(made.values()), errors


def _meant(each: LaunchDependency, known: list[Allocation]) -> list[Allocation]:
    if each.job:
        return [allocation for allocation in known if allocation.spec.job == each.job]
    by_id = [allocation for allocation in known if is_dependency_target(allocation, each.allocation, by_name=False)]
    return by_id or [allocation for allocation in known if allocation.metadata.name == each.allocation]


def _dependency(allocation: Allocation, when: DependencyEnd) -> Dependency:
    status = allocation.status
    result = status.result if status.phase is Phase.TERMINATED else None
    return Dependency(allocation=id_of(allocation), when=when, result=result)


def _nothing(each: LaunchDependency, workspace: str) -> str:
    if each.job:
        return (
            f"job {each.job} has no allocation in workspace {workspace}; launch its allocations first, or leave it out"
        )
    return f"workspace {workspace} has no allocation {each.allocation}; slipway ps --all lists what there is"
