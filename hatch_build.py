"""Build hook: compiles `protos/` into `pb` packages when the package is built or installed editable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES: Final = {"ext_proc.proto": "extproc", "endpoint_discovery.proto": "gateway"}  # that speak each


class CompileProtos(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling passes it
        from grpc_tools import protoc

        root = Path(self.root)
        well_known = Path(protoc.__file__).parent / "_proto"
        for proto, package in PACKAGES.items():
            out = root / "src/fairlead" / package / "pb"
            arguments = ["protoc", f"-I{root / 'protos'}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}"]
            if protoc.main([*arguments, str(root / "protos" / proto)]) != 0:
                raise RuntimeError(f"protoc could not compile protos/{proto}")
            generated = f"src/fairlead/{package}/pb"
            build_data["artifacts"] += [f"{generated}/*_pb2.py", f"{generated}/*_pb2.pyi"]
