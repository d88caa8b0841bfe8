#!/usr/bin/env python3
"""An image without a build tool: one plain layer in an OCI layout tar; the same files give the same bytes.

mkimage.py OUT.tar NAME:TAG [--entrypoint ARG].. [--env K=V].. [--user U] [--file SRC=DEST].. [--libs BINARY].. [--dir D]..

--file also takes a folder; --libs adds what ldd lists for a binary, the loader included.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MEDIA = "application/vnd.oci.image."


class Layer:
    """The image's files; folders on the way are made when first needed."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w", format=tarfile.PAX_FORMAT)
        self.made: set[str] = set()

    def folder(self, path: str) -> None:
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            name = "/".join(parts[:count])
            if name not in self.made:
                self.made.add(name)
                entry = tarfile.TarInfo(name)
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o1777 if name == "tmp" else 0o755
                self.tar.addfile(entry)

    def add(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            for name in sorted(os.listdir(source)):
                self.add(os.path.join(source, name), os.path.join(target, name))
            return
        name = target.strip("/")
        if name in self.made:
            return
        self.folder(os.path.dirname(name))
        self.made.add(name)
        entry = tarfile.TarInfo(name)
        entry.mode = 0o755 if os.access(source, os.X_OK) and os.stat(source).st_mode & 0o111 else 0o644
        entry.size = os.path.getsize(source)
        with open(source, "rb") as file:
            self.tar.addfile(entry, file)

    def libraries(self, binary: str) -> None:
        listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
        for found in re.finditer(r"(?:=> )?(/\S+) \(0x", listed):
            self.add(found.group(1), found.group(1))

    def bytes(self) -> bytes:
        self.tar.close()
        return self.buffer.getvalue()


def layer(args: argparse.Namespace) -> bytes:
    made = Layer()
    for path in args.dir:
        made.folder(path)
    for pair in args.file:
        made.add(*pair.split("=", 1))
    for binary in args.libs:
        made.libraries(binary)
    return made.bytes()


def write(args: argparse.Namespace) -> None:
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": MEDIA + kind, "digest": "sha256:" + digest, "size": len(data)}

    def encode(value: dict) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    files = blob("layer.v1.tar", layer(args))
    config = blob("config.v1+json", encode({
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {
            "Entrypoint": args.entrypoint,
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *args.env],
            "User": args.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [files["digest"]]},
    }))
    kind = "manifest.v1+json"
    manifest = encode({"schemaVersion": 2, "mediaType": MEDIA + kind, "config": config, "layers": [files]})
    entry = blob(kind, manifest) | {
        "platform": {"architecture": ARCHITECTURE, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": args.name,
            "org.opencontainers.image.ref.name": args.name.rsplit(":", 1)[1],
        },
    }
    members = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    members["index.json"] = encode({"schemaVersion": 2, "manifests": [entry]})
    members |= {"blobs/sha256/" + digest: data for digest, data in blobs.items()}
    with tarfile.open(args.out, "w") as out:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    print(entry["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("name")
    for option in ("entrypoint", "env", "file", "libs", "dir"):
        parser.add_argument("--" + option, action="append", default=[])
    parser.add_argument("--user", default="")
    write(parser.parse_args())


main()
