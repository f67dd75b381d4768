"""Build hook: compiles `protos/` into `fairlead.extproc.pb` when the package is built or installed editable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileProtos(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling passes it
        from grpc_tools import protoc

        root = Path(self.root)
        out = root / "src/fairlead/extproc/pb"
        well_known = Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{root / 'protos'}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}"]
        if protoc.main([*arguments, str(root / "protos/ext_proc.proto")]) != 0:
            raise RuntimeError("protoc could not compile protos/ext_proc.proto")
        build_data["artifacts"] += ["src/fairlead/extproc/pb/*_pb2.py", "src/fairlead/extproc/pb/*_pb2.pyi"]
