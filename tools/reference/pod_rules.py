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
    "pools.yaml": "# What a pod may request in its pool. Written by `make generate` from the table in\n"
    "# shared/slipway/crd/podrules.py.\n",
    "released.yaml": "# Which Secrets a pod may name in its workspace. Written by `make generate` from the table in\n"
    "# shared/slipway/crd/podrules.py.\n",
}
"""{file in helm/files/policies: the comment at its beginning}"""
PODS = Path(__file__).parents[2] / "helm" / "files" / "policies" / "pods.yaml"
_VOLUME_RULE = re.compile(
    r"(  - expression: >-\n)(?:      .*\n)+?(    message: a volume is of a kind that is not allowed)"
)
TOP = """# What a pod may request

A workspace limits [which Secrets](#secrets) its pods may name. A `ResourcePool` limits what its pods may request, with
the fields of its `spec` below. A field that is absent limits nothing beyond
[what Slipway always refuses](../security.md). Each rule is checked three times, from one table
(`shared/slipway/crd/podrules.py`):

- by the api, when a launch or a change arrives: status 422, with a pointer to the field, the pool and what it allows;
- by the scheduler, before an admission, and by the pod worker, before it makes the pods of each attempt. This covers an
  `Allocation` that was applied by hand, and a pool that was changed after the launch: the allocation waits, and
  `slipway explain` names the wrong field. Running pods are not stopped;
- by the API server, with the admission policy `pools` of the chart. It checks each pod against the pool that the pod
  worker names in the label `slipway.dev/pool`.

Administrators change these fields: `kubectl edit resourcepool gpu`. A change applies to the next launch and the next
attempt.
"""
IMAGES = """## Patterns of images

An image name is completed before it is compared, as in container runtimes: without a registry, it is an image of Docker
Hub, where `python` is `library/python`; without a tag and a digest, the tag is `latest`. If there is a digest, the tag
is ignored. `r.example` stands for a registry.

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
- The default images of a kind are checked too: list them, or set `defaults.KIND.image` of the pool.
- `contextImage` of the pod worker, which unpacks uploaded files, is not checked by the policy.
- A volume of kind `image` is checked like a container. It is mounted read-only. It needs Kubernetes 1.35, or 1.33 with
  the feature gate `ImageVolume`; before 1.33, Pod Security refuses it.
"""


NAMES = """## Secrets

The annotation `slipway.dev/secrets` of a workspace lists the Secrets of its namespace that pod templates may name:
names or `PREFIX*`, separated by commas. Without the annotation, pod templates may name every Secret. An empty
annotation releases no Secret.

```
kubectl annotate --overwrite namespace team slipway.dev/secrets='wandb,train-*'
```

| checked | pointer in the pod template |
| --- | --- |
| variables, `secrets` of a launch included | `env[].valueFrom.secretKeyRef`, `envFrom[].secretRef` of every container |
| volumes | `secret`, `projected.sources[].secret`, `csi.nodePublishSecretRef` |
| attributes of inline CSI volumes | `csi.volumeAttributes`, keys that end with `secretName` or a spelling of it |
| images | `imagePullSecrets`; Secrets in the annotation `slipway.dev/image-pull-secrets` are released only for this |

- The api refuses a launch with status 422, a pointer to the field, the Secrets that are released, and the command that
  releases this one. The api's copy of the annotation can be some seconds old. The pod worker checks an `Allocation`
  that was applied by hand, and each next attempt. The admission policy `released` checks each pod once more, with the
  annotation as it is then.
- No template may name the Secret `slipway-values-UID` with the
  [secret values](../security.md#secret-values-of-a-launch) of a launch, with or without the annotation: only the pods
  of that allocation refer to it.
- Keys of attributes are compared without case, `-`, `_` and `.`: `secretName`, `secret_name` and
  `csi.storage.k8s.io/node-publish-secret-name` are all checked. No template may set a key that ends with
  `secretNamespace`, with or without the annotation: a driver may read the Secrets of other workspaces.
- A Secret that a CSI driver or a storage class reads by itself is not named by a pod, and is not checked; neither is an
  attribute that names a Secret under another key. So the annotation protects Secrets from inline CSI volumes only
  together with `allowedCsiDrivers` of the pool: list only drivers whose attributes you know.
- A user who may launch in a workspace can use every Secret that it releases: a workspace is one boundary.

## Tokens of service accounts

A volume may project a token of the pod's service account only with an audience. A token without an audience would be
valid for the Kubernetes API, and the api refuses it (422). It also refuses the names of the Kubernetes API inside a
cluster, such as `https://kubernetes.default.svc`. Clusters may have other audiences, which the api does not know. So
only the policy `identities` is a guarantee: it refuses pods with an audience that is not in
`admissionPolicies.tokenAudiences` of the chart; `allowedTokenAudiences` of a pool allows fewer. Tokens that a mutating
webhook projects are checked in the pool too: list their audience in both. Sources other than `secret`,
`configMap`, `downwardAPI`, `clusterTrustBundle` and `serviceAccountToken` cannot be projected.

## Ephemeral volumes

The claim in a volume of kind `ephemeral` may set only `accessModes`, `resources`, `storageClassName` and
`volumeMode: Filesystem`. Other fields could name a volume, data or a block device of another user.
Its labels and annotations may not use Slipway's names. The api refuses everything else (422), and the policy `pods`
refuses it again, except in workspaces of `admissionPolicies.privilegedWorkspaces`. The annotations of the claim are
checked like those of the pod, because volume controllers act on them.

## Privileges

`allowedPrivileges: [root, IPC_LOCK]` allows these two and no others. The chart must list them too, in
`admissionPolicies.privileges`: the policy `pods` refuses all others, whatever a pool allows. In workspaces of
`admissionPolicies.privilegedWorkspaces` the API server does not check them; api, scheduler and pod worker do.
No name in the list allows `privileged`, `hostPID`, host paths, host ports or every capability at once.
[What each one is for](../launching.md#what-images-expect-of-the-node)

## Tolerations

`allowedTolerations: ["*"]` allows all tolerations; `allowedTolerations: ["nvidia.com/*", "spot"]` allows only those. It
does not allow a toleration without a key (`operator: Exists`), which tolerates every taint, also the taints of
control plane nodes. Tolerations of the pool itself, and the two that the API server adds to pods, are always allowed.
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
    return "\n".join([TOP, table(["field of the pool", "checks", "allows"], map(_row, RULES)), IMAGES, NAMES, IDS])


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
