"""The compiled extensions. They are optional: without a compiler the package installs and runs its pure Python instead."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "shmstore.producer.native.compiled", ["producer/native/compiled.pyx"], extra_compile_args=["-O3"], optional=True
        ),
        Extension(
            "shmstore.consumer.wire.native.entries",
            ["consumer/wire/native/entries.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension("shmstore.native.hot", ["shmstore/native/hot.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("shmstore.native.columns", ["shmstore/native/columns.pyx"], extra_compile_args=["-O3"], optional=True),
    ]
)
