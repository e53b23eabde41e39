"""Images, patterns, and whether the pattern allows the image: cases in which our Python and the API server must
agree."""

from slipway.crd.images import HUB

DIGEST = "sha256:" + "a1" * 32

ALLOWED: tuple[tuple[str, str], ...] = (
    ("*", "reg.example/a/b:1"),
    ("*", "python"),
    ("python", "python"),
    ("python", "python:3.11"),
    ("python", f"{HUB}/library/python:3.11"),
    ("python", f"{HUB}/python"),
    ("python", f"index.{HUB}/library/python"),
    (f"{HUB}/library/python", "python"),
    (f"{HUB}/", "python"),
    (f"{HUB}/", "team/app@" + DIGEST),
    (f"{HUB}/team", "team/app"),
    ("team/", "team/app:1"),
    ("team/*", "team/app:1"),
    ("reg.example/team", "reg.example/team"),
    ("reg.example/team", "reg.example/team/a/b:1"),
    ("reg.example/team/", "reg.example/team/a"),
    ("reg.example/*/train", "reg.example/a/train:1"),
    ("reg.example/*/train", "reg.example/a/train/cuda:1"),
    ("reg.example/team/t*n-*:v2.*", "reg.example/team/train-x:v2.1"),
    ("localhost/", "localhost/x"),
    ("r:5000/", "r:5000/x"),
    ("r:5000/x", "r:5000/x:1@" + DIGEST),
    ("*.example.com/team", "eu.example.com/team/app"),
    ("team/app:v*", "team/app:v1"),
    ("team/app:latest", "team/app"),
    ("team/app@" + DIGEST, "team/app@" + DIGEST),
    ("team/app@" + DIGEST, "team/app:v9@" + DIGEST),
    ("Team/", "Team/app"),
)
"""(pattern, image that it allows)"""
REFUSED: tuple[tuple[str, str], ...] = (
    ("python", "python-evil"),
    ("python", "reg.example/library/python"),
    ("python", "evil/python"),
    (f"{HUB}/python", "python"),
    (f"{HUB}/", f"{HUB}.example.com/python"),
    ("reg.example/team", "reg.example/team-evil/app"),
    ("reg.example/team", "reg.example"),
    ("reg.example/team/", "reg.example/team:1"),
    ("reg.example/team", "reg.example:443/team/app"),
    ("reg.example/*/train", "reg.example/a/b/train"),
    ("reg.example/team/*:v2.*", "reg.example/team/train:v3.0"),
    ("reg.example/team/*:v2.*", "reg.example/team/train:v2.1@" + DIGEST),
    ("reg.example/team/*:v2.*", "reg.example/team/a/train:v2.1"),
    ("regxexample/", "reg.example/x"),
    ("reg.example/a.b", "reg.example/axb"),
    ("localhost/", "localhost:5000/x"),
    ("r/", "r:5000/x"),
    ("r:5000/", "r:5001/x"),
    ("*.example.com/team", "example.com/team/app"),
    ("*.example.com/team", "eu.example.com:80/team/app"),
    ("*/team", "eu.example.com/team/app"),
    ("team/app:v1", "team/app"),
    ("team/app:v1", "team/app:v12"),
    ("team/app@" + DIGEST, "team/app:v1"),
    ("team/app@" + DIGEST, "team/app/x@" + DIGEST),
    ("team/app@" + DIGEST, "team/app@sha256:" + "b2" * 32),
    ("reg.example/team", "REG.example/team/app"),
)
"""(pattern, image that it does not allow)"""
