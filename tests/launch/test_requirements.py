"""Unmet requirements of an installed package, indirect ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import ExitCode
from launch.requirements import RequirementsError, find_unmet, main, warn_of_unmet

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that writes the metadata that pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, version: str, *requires: str, extras: tuple[str, ...] = ()) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")

    return write


def test_a_package_whose_requirements_are_met_has_none(install: Install) -> None:
    install("plan-a", "1", "plan-b>=2,<3")
    install("plan-b", "2.5+local")
    assert find_unmet("plan-a") == []


def test_a_missing_and_an_old_package_are_named_with_who_needs_them(install: Install) -> None:
    install("plan-a", "1", "plan-b>=2", "plan-missing")
    install("plan-b", "1.9", "plan-deep<4")
    install("plan-deep", "4.0")
    assert [str(unmet) for unmet in find_unmet("plan-a")] == [
        "plan-a needs plan-b>=2: 1.9 is installed",
        "plan-a needs plan-missing: it is not installed",
        "plan-b needs plan-deep<4: 4.0 is installed",
    ]


def test_requirements_of_extras_count_only_where_the_extra_is_wanted(install: Install) -> None:
    install("plan-a", "1", "plan-b[more]", extras=("never",))
    install("plan-b", "1", "plan-x; extra == 'more'", "plan-y; extra == 'other'", extras=("more",))
    assert [unmet.requirement for unmet in find_unmet("plan-a")] == ["plan-x"]
    assert [unmet.requirement for unmet in find_unmet("plan-b")] == []
    assert [unmet.requirement for unmet in find_unmet("plan-b", ["other"])] == ["plan-y"]


def test_markers_of_other_systems_and_circles_do_no_harm(install: Install) -> None:
    install("plan-a", "1", "plan-b", "plan-win; sys_platform == 'win32'")
    install("plan-b", "1", "Plan_A>=1")
    assert find_unmet("plan-a") == []


def test_a_package_that_is_not_installed_says_so_instead_of_nothing() -> None:
    with pytest.raises(RequirementsError, match=r"plan-nowhere is not installed in .*python"):
        find_unmet("plan-nowhere")
    (warning,) = warn_of_unmet("plan-nowhere")
    assert not warning.fatal
    assert "what it requires is not known" in warning.message


def test_the_command_exits_with_3_if_something_is_unmet(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("plan-a", "1", "plan-x; extra == 'more'", extras=("more",))
    assert main(["plan-a"]) == ExitCode.DONE
    assert "plan-a: every requirement is met" in capsys.readouterr().out
    assert main(["plan-a[more]"]) == ExitCode.PREFLIGHT
    assert capsys.readouterr().out == "plan-a needs plan-x: it is not installed\n"
    assert main(["plan-nowhere"]) == ExitCode.PREFLIGHT
    assert "error: plan-nowhere is not installed" in capsys.readouterr().err
    assert main(["?"]) == ExitCode.USAGE
