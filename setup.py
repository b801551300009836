"""Builds the compiled loops of sparklog/format/kernels.c, and puts conf/ into the wheel.

The compiler comes as a wheel (ziglang, a build requirement), so that nothing has to be installed for it, and
the library is the same wherever it is built. It knows nothing of Python: one wheel a platform serves every
version. sparklog needs it: a build that fails ends the installation.

SPARKLOG_WHEEL_PLATFORM=manylinux_2_17_aarch64 builds for another platform: the compiler is a cross compiler.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, OptionError

HERE = Path(__file__).resolve().parent
PLATFORM = os.environ.get("SPARKLOG_WHEEL_PLATFORM", "")
OLDEST_GLIBC = "2.17"  # of 2012, as manylinux2014 has it
CONF = Path("sparklog_server", "conf")  # where conf/ is in the wheel
FLAGS = ["-std=c11", "-O3", "-g0", "-s", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]


class BuildKernels(build_ext):
    """One C file to one shared library."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the version of Python that others' names carry."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile, or end the installation with what the compiler said."""
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(  # noqa: S603 - our own words
                [sys.executable, "-m", "ziglang", "cc", *FLAGS, *_target(), "-o", str(output), *ext.sources],
                env={"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise CompileError(f"cannot compile {ext.sources[0]}: {done.stderr.strip()[-2000:]}")


class PackConf(build_py):
    """The packages, and conf/."""

    def run(self) -> None:
        """Copy conf/ too; an editable installation has it in its place."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(HERE / "conf", Path(self.build_lib) / CONF, dirs_exist_ok=True)


class PlatformWheel(bdist_wheel):
    """For a platform, and any version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """(python, abi, platform)"""
        return "py3", "none", _platform() or super().get_tag()[2]


def _platform() -> str:
    """The wheel's platform: what was asked for, or this machine's Linux; otherwise empty."""
    if PLATFORM or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return PLATFORM
    return f"manylinux_{OLDEST_GLIBC.replace('.', '_')}_{platform.machine()}"


def _target() -> list[str]:
    """The compiler's name of the platform; none: as the machine is."""
    if not _platform():
        return []
    found = re.fullmatch(r"(manylinux|macosx)_(\d+)_(\d+)_(x86_64|aarch64|arm64)", _platform())
    if found is None:
        raise OptionError(
            f"SPARKLOG_WHEEL_PLATFORM: found {PLATFORM!r}, expected one such as manylinux_2_17_aarch64 or "
            "macosx_11_0_arm64"
        )
    kind, major, minor, machine = found.groups()
    system = "linux-gnu" if kind == "manylinux" else "macos"
    return ["-target", f"{machine.replace('arm64', 'aarch64')}-{system}.{major}.{minor}"]


def _long_description() -> str:
    """README.md, whose links lead into the repository: an index of packages has no other files of it."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    here = f"{project['urls']['Repository']}/{{}}/v{project['version']}/"

    def absolute(found: re.Match[str]) -> str:
        before, to = found.groups()
        return before + here.format("raw" if before.startswith("!") else "blob") + to

    return re.sub(r"(!?\[[^]]*\]\()(?![a-z]+:|#)([^)\s]+)", absolute, (HERE / "README.md").read_text())


setup(
    long_description=_long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("sparklog.format._kernels", ["sparklog/format/kernels.c"])],
    cmdclass={"build_ext": BuildKernels, "build_py": PackConf, "bdist_wheel": PlatformWheel},
)
