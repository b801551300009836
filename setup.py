"""Builds the compiled loops of sparklog/format/kernels.c.

The compiler comes as a wheel (ziglang, a build requirement), so that nothing has to be installed for it, and
the library is the same wherever it is built. It knows nothing of Python: one wheel a platform serves every
version. sparklog needs it: a build that fails ends the installation.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

OLDEST_GLIBC = "2.17"  # of 2012, as manylinux2014 has it
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
                env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise CompileError(f"cannot compile {ext.sources[0]}: {done.stderr.strip()[-2000:]}")


class PlatformWheel(bdist_wheel):
    """For a platform, and any version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """(python, abi, platform)"""
        name = super().get_tag()[2]
        if _target():
            name = name.replace("linux_", f"manylinux_{OLDEST_GLIBC.replace('.', '_')}_")
        return "py3", "none", name


def _target() -> list[str]:
    """On Linux with glibc, run with older ones too; elsewhere as the machine is."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        return ["-target", f"{platform.machine()}-linux-gnu.{OLDEST_GLIBC}"]
    return []


setup(
    ext_modules=[Extension("sparklog.format._kernels", ["sparklog/format/kernels.c"])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
