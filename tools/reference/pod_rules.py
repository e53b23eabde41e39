"""The rules for pods: the reference page, and the admission policies of the chart, both from one table."""

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import yaml

from slipway.crd.podrules import RULES, PodRule, policy, workspace_policy
from slipway.crd.podtemplate import volumes_in_cel
from tools.reference.markdown import code, table

HEADERS = {
    "pools.yaml": "# What a pod may ask for in its pool. Written by `make generate` from the table in\n"
    "# shared/slipway/crd/podrules.py.\n",
    "released.yaml": "# Which Secrets a pod may name in its workspace. Written by `make generate` from the table in\n"
    "# shared/slipway/crd/podrules.py.\n",
}
"""{file in helm/files/policies: the comment at its beginning}"""
PODS = Path(__file__).parents[2] / "helm" / "files" / "policies" / "pods.yaml"
_VOLUME_RULE = re.compile(
    r"(  - expression: >-\n)(?:      .*\n)+?(    message: a volume is of a kind that is not allowed)"
)
TOP = """# What a pod may ask for

A workspace limits [which Secrets](#secrets) its pods may name. A `ResourcePool` limits what its pods may ask for, in
the fields of its `spec` below. A field that is absent limits
nothing beyond [what Slipway always refuses](../security.md). Each rule is judged three times, from one table
(`shared/slipway/crd/podrules.py`):

- by the api, when a launch or a change arrives: status 422, with a pointer to the field, the pool and what it allows;
- by the scheduler, before an admission, and by the pod worker, before it makes the pods of each attempt. This covers an
  `Allocation` that was applied by hand, and a pool that was changed meanwhile: the allocation waits, and `slipway
  explain` says which field is wrong. Pods that run are not stopped;
- by the API server, with the admission policy `pools` of the chart. It judges each pod by the pool that the pod worker
  names in the label `slipway.dev/pool`.

Administrators change these fields: `kubectl edit resourcepool gpu`. A change applies to the next launch and the next
attempt.
"""
IMAGES = """## Patterns of images

An image name is completed before it is compared, as container runtimes do: without a registry it is one of Docker Hub,
`python` is `library/python` there, and without a tag and a digest the tag is `latest`. If there is a digest, the tag
beside it is ignored. `r.example` stands for a registry.

| pattern | allows | does not allow |
| --- | --- | --- |
| `r.example/team` | `r.example/team:1`, `r.example/team/train:24.05` | `r.example/team-b/train` |
| `r.example/` | every image of this registry | the registry `r.example:5000` |
| `r.example/*/train` | `r.example/a/train:1`, `r.example/b/train/cuda:1` | `r.example/a/b/train` |
| `r.example/team/train:v2.*` | `r.example/team/train:v2.1` | `r.example/team/train:v2.1@sha256:...` |
| `r.example/team/train@sha256:...` | this digest, whatever the tag | any other digest, and a tag alone |
| `python` | `python:3.11`, `library/python` of Docker Hub | `r.example/x/python` |
| `pytorch/` | everything of `pytorch` on Docker Hub | `pytorch` alone |
| `*/` | everything of Docker Hub | images that name another registry |
| `*` | every image | |

- A pattern without a tag and a digest allows the repository and all repositories below it, in every tag and digest. If
  it ends with a slash, it allows only those below it. A pattern that is only a registry ends with a slash.
- A pattern with a tag allows no image with a digest, because the digest alone decides what is pulled.
- `*` stands for any characters of one part of the path, of a tag or of a digest, and for no `/` and no `:`.
- The images that a kind gets by default are judged too: list them, or set `defaults.KIND.image` of the pool.
- `contextImage` of the pod worker, which unpacks uploaded files, is not judged by the policy.
- A volume of kind `image` is judged as a container is. It is mounted read-only. It needs Kubernetes 1.35, or 1.33 with
  the feature gate `ImageVolume`; before 1.33, Pod Security refuses it.
"""


NAMES = """## Secrets

The annotation `slipway.dev/secrets` of a workspace lists the Secrets of its namespace that pod templates may name:
names or `PREFIX*`, with commas. Without the annotation every Secret may be named, as before there was one; an empty one
releases none.

```
kubectl annotate --overwrite namespace team slipway.dev/secrets='wandb,train-*'
```

| judged | pointer in the pod template |
| --- | --- |
| variables, `secrets` of a launch included | `env[].valueFrom.secretKeyRef`, `envFrom[].secretRef` of every container |
| volumes | `secret`, `projected.sources[].secret`, `csi.nodePublishSecretRef` |
| attributes of inline CSI volumes | `csi.volumeAttributes`, keys that end with `secretName` or a spelling of it |
| images | `imagePullSecrets`; what the annotation `slipway.dev/image-pull-secrets` names is released for this alone |

- The api refuses a launch with status 422, a pointer to the field, the Secrets that are released, and the command that
  releases this one. What it has read of the annotation is some seconds old. The pod worker judges an `Allocation` that
  was applied by hand, and each next attempt. The admission policy `released` judges each pod once more, by the
  annotation as it is then.
- No template names the Secret `slipway-values-UID` with the
  [secret values](../security.md#secret-values-of-a-launch) of a launch, with and without the annotation: only the pods
  of that allocation refer to it.
- Keys of attributes are compared without case, `-`, `_` and `.`: `secretName`, `secret_name` and
  `csi.storage.k8s.io/node-publish-secret-name` are all judged. No template sets one that ends with `secretNamespace`,
  with and without the annotation: a driver may read the Secrets of other workspaces.
- Secrets that a CSI driver or a storage class reads by itself are named by no pod, and are not judged; nor are
  attributes that name a Secret under another key. So the annotation holds for inline CSI volumes only together with
  `allowedCsiDrivers` of the pool: list only drivers whose attributes you know.
- Who may launch in a workspace can use every Secret that it releases: a workspace is one boundary.

## Tokens of service accounts

A volume may project a token of the pod's account only for an audience. A token without one would be for the Kubernetes
API, and the api refuses it (422), as it refuses the names of the Kubernetes API inside of a cluster, such as
`https://kubernetes.default.svc`. Clusters may have other audiences, which the api does not know. So the policy
`identities` is what holds: it refuses the pods of every audience but those of `admissionPolicies.tokenAudiences` of the
chart; `allowedTokenAudiences` of a pool allows fewer. A mutating webhook that projects tokens adds to what
is judged in the pool: list its audience in both. Sources other than `secret`, `configMap`, `downwardAPI`,
`clusterTrustBundle` and `serviceAccountToken` cannot be projected.

## Ephemeral volumes

The claim that a volume of kind `ephemeral` brings along says `accessModes`, `resources`, `storageClassName` and
`volumeMode: Filesystem` only. Other fields could name a volume, data or a block device of somebody else.
Its labels and annotations have no names of Slipway's. The api refuses the rest (422), and the policy `pods` refuses it
again, except in workspaces of `admissionPolicies.privilegedWorkspaces`. The annotations of the claim are judged as
those of the pod: a controller of volumes takes them as orders.

## Privileges

`allowedPrivileges: [root, IPC_LOCK]` allows these and no other. The chart has to list them too, in
`admissionPolicies.privileges`: the policy `pods` refuses the others, whatever a pool says. In workspaces of
`admissionPolicies.privilegedWorkspaces` the API server does not judge them; api, scheduler and pod worker do.
No name allows `privileged`, `hostPID`, host paths, host ports or every capability at once.
[What each one is for](../launching.md#what-images-expect-of-the-node)

## Tolerations

`allowedTolerations: ["*"]` allows everything; `allowedTolerations: ["nvidia.com/*", "spot"]` allows those, and not a
toleration without a key (`operator: Exists`), which tolerates every taint, also those that keep work from nodes of the
control plane. Tolerations of the pool itself, and the two that the API server adds to pods, are always allowed.
"""


IDS = """## Users and groups

- A range is a number or two numbers with a hyphen, both included.
- If a pool limits users, each container needs a uid from the launch, its workspace or the pool
  ([`runAs`](../launching.md#the-user-and-the-groups)). Without one, 1000 is used. In a pool with
  `privilegedTemplates` the image would choose, so such a pod is refused.
- If a pool limits groups, each container needs a primary group in the same way: without one, the image chooses. Set
  `runAs.group` of the pool as the default. The group of volumes then follows the primary group.
- An image can add its user to further groups in its `/etc/group`. On nodes that support it, the pod template prevents
  this with `supplementalGroupsPolicy: Strict`.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([TOP, table(["field of the pool", "judges", "allows"], map(_row, RULES)), IMAGES, NAMES, IDS])


def _row(rule: PodRule) -> list[str]:
    return [code(rule.field), rule.judges, rule.says]


def policy_files() -> dict[str, str]:
    """Return {file name: admission policy}, in the form that the chart reads."""
    policies = {"pools.yaml": policy(), "released.yaml": workspace_policy()}
    written = {name: HEADERS[name] + yaml.safe_dump(policies[name], sort_keys=False, width=120) for name in HEADERS}
    return {**written, PODS.name: _with_volumes(PODS.read_text("utf-8"))}


def _with_volumes(text: str) -> str:
    """Return the handwritten policy `pods` with the table's kinds of volumes in its rule about volumes."""
    lines = textwrap.wrap(volumes_in_cel("variables.volumes"), 114, break_long_words=False, break_on_hyphens=False)
    made = "\n".join(f"      {line}" for line in lines)
    found, count = _VOLUME_RULE.subn(lambda match: f"{match[1]}{made}\n{match[2]}", text)
    if count != 1:
        raise LookupError(f"{PODS.name} has {count} rules about kinds of volumes")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the policies into a folder."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tools.reference.pod_rules FOLDER\n")
        return 2
    for name, text in policy_files().items():
        (Path(arguments[0]) / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
