"""Says which torch pip would install, and stops before a CUDA build on a machine without a GPU. Knows only pip."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COMPANION = re.compile(r"(nvidia|cuda|triton)\b")
"""Names of the packages, several gigabytes of them, that only a CUDA build asks for."""

ADVICE = """
This is a CUDA build, and no NVIDIA device is here: it would fetch several gigabytes that cannot be used. Either
  - tell pip where a CPU build of the pinned torch is and run make again:
      PIP_EXTRA_INDEX_URL=<the CPU index that the "Get started" page of PyTorch names> make run
      PIP_FIND_LINKS=<a folder with the wheel> make run
  - or take the CUDA build all the same: make run TORCH=cuda"""


def has_device() -> bool:
    """Whether an NVIDIA device or its driver is here."""
    places = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")
    return any(Path(place).exists() for place in places) or shutil.which("nvidia-smi") is not None


def planned(pin: str) -> dict[str, Any] | None:
    """Core metadata of the build that pip would install for `pin`; None where it is there already."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--no-deps", "--only-binary", "torch", "--report", "-", pin]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        sys.exit(f"pip finds no wheel of {pin} for this machine and this Python ({sys.version.split()[0]})")
    items = json.loads(done.stdout)["install"]
    return items[0]["metadata"] if items else None


def main(constraints: str, wanted: str = "") -> None:
    pin = next(line for line in Path(constraints).read_text().split() if line.startswith("torch=="))
    if wanted not in ("", "cuda"):
        sys.exit(f"TORCH={wanted} means nothing: leave it out, or say TORCH=cuda")
    if wanted == "cuda" or has_device():
        print(f"torch: {pin}, whichever build pip prefers")
        return
    metadata = planned(pin)
    if metadata is None:
        print(f"torch: {pin} is installed")
        return
    cuda = [name for name in metadata.get("requires_dist", []) if COMPANION.match(name)]
    print(f"torch: {metadata['version']}, {f'a CUDA build with {len(cuda)} companions' if cuda else 'a CPU build'}")
    if cuda:
        sys.exit(ADVICE)


if __name__ == "__main__":
    main(*sys.argv[1:])
