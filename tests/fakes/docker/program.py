"""A stand-in for the ``docker`` program, without an engine: each container is a bubblewrap with a
root of its own, and real processes with the rights that ``--cap-add`` names.

It accepts the flags of docker's documentation that it knows, and refuses all others. It does not
pull images (every name is the same image: the files of the folder ``layer``, then what the test's
script made, which gets the name), but builds some: WORKDIR and COPY are followed, RUN is run when a
container starts. ``commit`` keeps a container's files and labels. It does not limit memory,
processes and CPU time, and has no networks but this machine's and none: one that is named in the
file ``internal`` is said to be internal, and is this machine's all the same. Only root can enter a
container. Its state lies beside the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

STATE = Path(sys.argv[0]).absolute().parent / "containers"
PREFIX = Path(sys.base_prefix).resolve()
PATH = f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
RUN = {
    **dict.fromkeys(("--detach", "--init"), 0),
    **dict.fromkeys(("--name", "--label", "--network", "--user", "--workdir", "--entrypoint"), 1),
    **dict.fromkeys(("--memory", "--memory-swap", "--pids-limit", "--cpus"), 1),
    **dict.fromkeys(("--security-opt", "--cap-drop", "--cap-add"), 1),
}
EXEC = {"--interactive": 0, "--user": 1}
BUILD = {"--quiet": 0, "--tag": 1}
COMMIT = {"--change": 1}
LIST = {"--all": 0, "--filter": 1, "--format": 1}
REMOVE = {"--force": 0, "--volumes": 0}
"""Flags → how many words follow each."""
Flags = dict[str, list[str]]


def refuse(message: str, code: int = 125) -> NoReturn:
    """End as docker does when it refuses."""
    print(f"docker: {message}", file=sys.stderr)
    sys.exit(code)


def parse(words: list[str], known: dict[str, int]) -> tuple[Flags, list[str]]:
    """Return the flags before the first other word, and the rest."""
    flags: Flags = {}
    while words and words[0].startswith("-"):
        name, *words = words
        if name not in known:
            refuse(f"unknown flag: {name}")
        flags.setdefault(name, []).extend(words[: known[name]])
        words = words[known[name] :]
    return flags, words


def list_facts() -> list[dict[str, Any]]:
    """Return what is known of each container; another call may remove one meanwhile."""
    found = []
    for file in STATE.glob("*/facts.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(json.loads(file.read_text()))
    return found


def find_container(name: str) -> dict[str, Any]:
    """Return a container by its name or id; ends the program if there is none."""
    for facts in list_facts():
        if name == facts["name"] or facts["id"].startswith(name):
            return facts
    print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
    sys.exit(1)


def make_root(root: Path) -> None:
    """Make the directories and files that an image has of its own."""
    for name in ("etc", "home", "opt", "proc", "dev", "root", "tmp", "usr", "var/lib"):
        (root / name).mkdir(parents=True)
    (root / PREFIX.relative_to("/")).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "root").chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ETC:
        host = Path("/etc") / name
        if host.is_dir():
            shutil.copytree(host, root / "etc" / name, symlinks=True)
        elif host.exists():
            shutil.copy2(host, root / "etc" / name)


def is_mounted(pid: int, own: Path) -> bool:
    """Return whether a container's first process has the container's root."""
    try:
        return own.samefile(Path(f"/proc/{pid}/root") / "etc" / "passwd")
    except OSError:
        return False


def run(words: list[str]) -> None:
    """Start a container and print its id."""
    flags, words = parse(words, RUN)
    if "--detach" not in flags or "--init" not in flags or not words:
        refuse("the stand-in only runs containers with --detach and --init")
    name = flags["--name"][0]
    if any(facts["name"] == name for facts in list_facts()):
        refuse(f'Conflict. The container name "/{name}" is already in use.')
    container = secrets.token_hex(32)
    root = STATE / container / "root"
    built = find_build(words[0])
    committed = built is not None and (built / "root").exists()
    if built is not None and committed:
        (STATE / container).mkdir()
        subprocess.run(["cp", "--archive", built / "root", root], check=True)
    else:
        make_root(root)
    if (layer := STATE.parent / "layer").exists() and not committed:
        shutil.copytree(layer, root, symlinks=True, dirs_exist_ok=True)
    binds = ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if Path(path).is_symlink():
            binds += ["--symlink", os.readlink(path), path]  # noqa: PTH115 (text as it is)
        elif Path(path).is_dir():
            binds += ["--ro-bind", path, path]
    if not PREFIX.is_relative_to("/usr"):
        binds += ["--ro-bind", str(PREFIX), str(PREFIX)]
    if flags["--network"] == ["none"]:
        binds.append("--unshare-net")
    reader, pid_fd = os.pipe()
    bubblewrap = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-add", "ALL"]
    subprocess.Popen(
        [*bubblewrap, *binds, "--info-fd", str(pid_fd), "--", flags["--entrypoint"][0], *words[1:]],
        pass_fds=[pid_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(STATE / container / "log").open("wb"),
        start_new_session=True,
    )
    os.close(pid_fd)
    with os.fdopen(reader) as file:
        pid = json.load(file)["child-pid"]
    facts = {
        **{"id": container, "name": name, "pid": pid, "image": words[0]},
        "labels": dict(label.split("=", 1) for label in flags["--label"]),
        "capabilities": flags.get("--cap-add", []),
    }
    unfinished = STATE / container / "facts.unfinished"
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(STATE / container / "facts.json")  # another call reads all of it, or nothing
    until = time.monotonic() + 20
    while not is_mounted(pid, root / "etc/passwd"):
        if time.monotonic() > until:
            refuse("the container does not start")
        time.sleep(0.001)
    image = STATE.parent / "image"
    scripts = [image.read_text()] if image.exists() else []
    scripts += [finish_image(built, root)] if built and not committed else []
    for text in [] if committed else scripts:
        script = inside(facts, ["sh", "-c", text, "image", words[0]])
        subprocess.run(script, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(container)


def find_build(tag: str) -> Path | None:
    """Return the build context of an image that was built."""
    for folder in (STATE.parent / "images").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if (folder / "tag").read_text() == tag:
                return folder
    return None


def finish_image(built: Path, root: Path) -> str:
    """Copy an image's files into a container's root; return the commands of its RUN lines."""
    at, runs = "/", []
    for line in (built / "context" / "Dockerfile").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "WORKDIR":
            at = rest
            (root / at.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            source, target = rest.split()
            place = root / target.lstrip("/")
            if target.endswith("/") and (built / "context" / source).is_file():
                place = place / source
            place.parent.mkdir(parents=True, exist_ok=True)
            if (built / "context" / source).is_dir():
                shutil.copytree(built / "context" / source, place, dirs_exist_ok=True)
            else:
                shutil.copy2(built / "context" / source, place)
        elif word == "RUN":
            runs.append(f"cd {at} && {rest}")
        elif word not in ("FROM", ""):
            refuse(f"the stand-in cannot build {line}")
    return " && ".join(["true", *runs])


def build(words: list[str]) -> None:
    """Keep a build context, and print the image's id."""
    flags, (context,) = parse(words, BUILD)
    if not (Path(context) / "Dockerfile").is_file():
        refuse("failed to read dockerfile: open Dockerfile: no such file or directory", 1)
    image = secrets.token_hex(32)
    folder = STATE.parent / "images" / image
    shutil.copytree(context, folder / "context")
    (folder / "tag").write_text(flags["--tag"][0])
    print(f"sha256:{image}")


def commit(words: list[str]) -> None:
    """Make an image of a container's files, and print its id."""
    flags, (container, tag) = parse(words, COMMIT)
    facts = find_container(container)
    labels = dict(facts["labels"])
    for change in flags.get("--change", []):
        instruction, _, rest = change.partition(" ")
        if instruction != "LABEL":
            refuse(f"the stand-in makes no change {instruction}")
        name, _, value = rest.partition("=")
        labels[name] = value
    if (former := find_build(tag)) is not None:
        (former / "tag").write_text("<none>")
    image = secrets.token_hex(32)
    folder = STATE.parent / "unfinished" / image
    folder.mkdir(parents=True)
    source = STATE / facts["id"] / "root"
    subprocess.run(["cp", "--archive", source, folder / "root"], check=True)
    (folder / "labels.json").write_text(json.dumps(labels))
    (folder / "tag").write_text(tag)
    (STATE.parent / "images").mkdir(exist_ok=True)
    folder.rename(STATE.parent / "images" / image)  # whole, since other calls look there
    print(f"sha256:{image}")


def remove_images(words: list[str]) -> None:
    """Remove images that no container uses."""
    _, names = parse(words, {})
    for name in names:
        folders = list((STATE.parent / "images").glob(f"{name}*"))
        folder = find_build(name) or (folders[0] if folders else None)
        if folder is None:
            print(f"Error response from daemon: No such image: {name}", file=sys.stderr)
            sys.exit(1)
        tag = (folder / "tag").read_text()
        for facts in list_facts():
            if facts["image"] == tag:
                refuse(
                    f"Error response from daemon: conflict: unable to delete {tag} (cannot be "
                    f"forced) - image is being used by running container {facts['id'][:12]}",
                    1,
                )
        gone = STATE.parent / "unfinished" / folder.name
        gone.parent.mkdir(exist_ok=True)
        folder.rename(gone)
        shutil.rmtree(gone)
        print(f"Untagged: {tag}\nDeleted: sha256:{folder.name}")


def print_version(words: list[str]) -> None:
    """Print the versions of program and engine."""
    if words:
        refuse(f"the stand-in knows no version {' '.join(words)}")
    print("Client:\n Version: 28.2.2\nServer:\n Engine:\n  Version: 28.2.2")


def list_images(words: list[str]) -> None:
    """Print the id of an image of a tag, or of those with a label."""
    flags, rest = parse(words, {"--quiet": 0, "--filter": 1})
    if (wanted := flags.get("--filter")) is not None:
        for file in (STATE.parent / "images").glob("*/labels.json"):
            labels = {f"label={name}={each}" for name, each in json.loads(file.read_text()).items()}
            if labels.issuperset(wanted):
                print(file.parent.name[:12])
        return
    (tag,) = rest
    if (folder := find_build(tag)) is not None:
        print(folder.name[:12])


def inside(facts: dict[str, Any], words: list[str]) -> list[str]:
    """Return the command line that runs a command in a container, with its capabilities alone."""
    capabilities = ",".join(f"+{name.lower()}" for name in facts["capabilities"])
    return [
        *("nsenter", "--target", str(facts["pid"]), "--mount", "--pid", "--net", "--ipc", "--uts"),
        *("setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all,{capabilities}"),
        *("env", "-i", f"PATH={PATH}", "HOME=/root", *words),
    ]


def pump(source: int, target: int, *, close: bool = False) -> None:
    """Copy a stream to its end."""
    with contextlib.suppress(OSError):
        while data := os.read(source, 1 << 16):
            while data:
                data = data[os.write(target, data) :]
    if close:
        os.close(target)


def execute(words: list[str]) -> None:
    """Run a command in a container; it goes on if this program is killed, its streams do not."""
    flags, words = parse(words, EXEC)
    if flags["--user"] != ["0"]:
        refuse("the stand-in only runs commands as root")
    facts = find_container(words[0])
    pipe = subprocess.PIPE
    process = subprocess.Popen(inside(facts, words[1:]), stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    stdin = os.dup(process.stdin.fileno())
    process.stdin.close()
    if "--interactive" in flags:
        threading.Thread(target=pump, args=(0, stdin), kwargs={"close": True}, daemon=True).start()
    else:
        os.close(stdin)
    errors = threading.Thread(target=pump, args=(process.stderr.fileno(), 2))
    errors.start()
    pump(process.stdout.fileno(), 1)
    errors.join()
    sys.stdout.flush()
    os._exit(process.wait())


def inspect_network(words: list[str]) -> None:
    """Print whether a network is internal, in the format of the one caller."""
    verb, *rest = words
    flags, names = parse(rest, {"--format": 1})
    if verb != "inspect" or flags != {"--format": ["{{.Internal}}"]}:
        refuse(f"the stand-in knows no network {' '.join(words)}")
    file = STATE.parent / "internal"
    internal = file.read_text().split() if file.exists() else []
    for name in names:
        if name not in ("bridge", "host", "none", *internal):
            print(f"Error response from daemon: network {name} not found", file=sys.stderr)
            sys.exit(1)
        print(str(name in internal).lower())


def inspect(words: list[str]) -> None:
    """Print whether a container runs, in the format of the one caller."""
    flags, (name,) = parse(words, {"--format": 1})
    if flags != {"--format": ["{{.State.Running}}"]}:
        refuse("the stand-in only tells whether a container runs")
    pid = find_container(name)["pid"]
    print(str(Path(f"/proc/{pid}").exists()).lower())


def remove(words: list[str]) -> None:
    """End a container."""
    flags, words = parse(words, REMOVE)
    assert "--force" in flags
    for name in words:
        facts = find_container(name)
        folder = STATE / facts["id"]
        (folder / "facts.json").unlink(missing_ok=True)  # two calls may remove it at once
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["pid"], signal.SIGKILL)
        while Path(f"/proc/{facts['pid']}").exists():
            time.sleep(0.002)
        shutil.rmtree(folder, ignore_errors=True)
        print(name)


def show(words: list[str]) -> None:
    """List containers by a label, in the format of the one caller."""
    flags, _ = parse(words, LIST)
    (wanted,) = flags["--filter"]
    (line,) = flags["--format"]
    for facts in list_facts():
        if wanted in {f"label={name}={value}" for name, value in facts["labels"].items()}:
            print(line.replace("{{.Names}}", facts["name"]))


if __name__ == "__main__":
    STATE.mkdir(exist_ok=True)
    command, *rest = sys.argv[1:]
    {
        **{"run": run, "exec": execute, "rm": remove, "ps": show, "network": inspect_network},
        **{"build": build, "images": list_images, "inspect": inspect},
        **{"version": print_version, "commit": commit, "rmi": remove_images},
    }[command](rest)
