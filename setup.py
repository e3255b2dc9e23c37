"""The compiled extensions. They are optional: without a compiler the package installs and runs its pure Python instead."""

import sys
from contextlib import suppress

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WARNING = (
    "warning: shmstore: {names} could not be compiled, so pure Python runs, at 6 to 23 times the CPU for each row. To compile, install a C compiler and "
    "Python's headers, then: pip cache remove shmstore; pip install --force-reinstall --no-deps shmstore (or . in a checkout)"
)


class BuildAndWarn(build_ext):
    """Builds what can be built, and names what cannot. pip shows a build's output with -v alone, so a terminal gets the line directly."""

    def run(self):
        """Build."""
        self.failed = []
        super().run()
        if self.failed:
            line = WARNING.format(names=", ".join(self.failed))
            print(line, file=sys.stderr)
            with suppress(OSError), open("/dev/tty", "w") as terminal:
                print(line, file=terminal)

    def build_extension(self, extension):
        """Build one; setuptools only logs that an optional one failed."""
        try:
            super().build_extension(extension)
        except Exception:
            self.failed.append(extension.name)
            raise


def extension(name, source, **options):
    """An extension that an installation may lack."""
    return Extension(name, [source], optional=True, **options)


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": BuildAndWarn},
        ext_modules=[
            extension("shmstore.producer.native.compiled", "producer/native/compiled.pyx", extra_compile_args=["-O3"]),
            extension("shmstore.consumer.wire.native.entries", "consumer/wire/native/entries.pyx", extra_compile_args=["-O3"]),
            extension("shmstore.consumer.queues.native.rows", "consumer/queues/native/rows.pyx", extra_compile_args=["-O3"]),
            extension("shmstore.native.hot", "shmstore/native/hot.pyx", extra_compile_args=["-O3"]),
            extension("shmstore.native.columns", "shmstore/native/columns.pyx", extra_compile_args=["-O3"]),
        ],
    )
