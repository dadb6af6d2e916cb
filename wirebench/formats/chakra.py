"""Chakra execution traces: the messages of MLCommons' schema that are written here, and a file of them for each rank.

A file holds messages in protobuf's encoding, each after its length: one GlobalMetadata, then a Node for every
computation, message or collective. The schema (MLCommons' et_def.proto, version 0.0.4) is spelled out below, the fields
that are written and no others, in a pool of its own: a program that has loaded Chakra's own is not disturbed.
"""

import io
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from google.protobuf import proto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from wirebench.errors import UserError
from wirebench.utils import user_files

VERSION = "0.0.4"
_PACKAGE = "ChakraProtoMsg"
MOST_RANKS = 4096
"""Each has a file, of some 25 kB for a ResNet-50."""
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "AttributeProto": {
        "name": (1, "string"), "int32_val": (7, "int32"), "int64_val": (9, "int64"), "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"), "data_deps": (5, "repeated uint64"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"), "attr": (10, "AttributeProto"),
    },
}  # fmt: skip
"""Fields by message: number and type. `type` is an enumeration in Chakra, which has the encoding of an int32."""
_INT32 = {"comm_src", "comm_dst", "comm_tag"}
"""Attributes that Chakra's feeder reads as int32; it reads all other whole numbers as int64."""


class NodeType(IntEnum):
    """Chakra's types of nodes."""

    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CommType(IntEnum):
    """What a COMM_COLL_NODE asks of all ranks."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="wirebench/chakra.proto", package=_PACKAGE, syntax="proto3")
    for message_name, fields in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            repeated, _, kind = kind.rpartition(" ")
            several = bool(repeated) or kind in _SCHEMA
            field = message.field.add(name=name, number=number)
            field.label = FieldDescriptorProto.LABEL_REPEATED if several else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in _SCHEMA:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                field.oneof_index = 0  # so that a value of 0 is written, too
        if "int64_val" in fields:
            message.oneof_decl.add(name="value")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _SCHEMA}


_MESSAGES = _classes()


class RankTrace:
    """The trace of one rank. Nodes are numbered from 0, in the order in which they are added."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []

    def add(
        self, kind: NodeType, name: str, after: Sequence[int], begin: float = 0.0, end: float = 0.0, **attributes: Any
    ) -> int:
        """Add a node, which waits for the nodes `after`, and return its number.

        begin, end  in seconds; 0 where it is for the reader to say how long a message takes. Both are rounded to
                    microseconds, so that nodes which follow one another do so in the trace
        attributes  of types bool, int and str
        The type goes before the name: Chakra's visualizer shows nothing else, and its timeline_visualizer reads it
        there.
        """
        start = round(1e6 * begin)
        self._nodes.append(
            _MESSAGES["Node"](
                id=len(self._nodes),
                name=f"{kind.name} {name}",
                type=kind,
                data_deps=sorted(set(after)),
                start_time_micros=start,
                duration_micros=round(1e6 * end) - start,
                attr=[_attribute(key, value) for key, value in {"is_cpu_op": False, **attributes}.items()],
            )
        )
        return len(self._nodes) - 1

    def encoded(self, about: dict[str, str]) -> bytes:
        """The file's content; `about` goes into its head."""
        stream = io.BytesIO()
        head = _MESSAGES["GlobalMetadata"](version=VERSION, attr=[_attribute(*pair) for pair in about.items()])
        for message in (head, *self._nodes):
            proto.serialize_length_prefixed(message, stream)
        return stream.getvalue()


def _attribute(name: str, value: bool | int | str) -> Any:
    if isinstance(value, bool):
        field = "bool_val"
    elif isinstance(value, str):
        field = "string_val"
    else:
        field = "int32_val" if name in _INT32 else "int64_val"
    return _MESSAGES["AttributeProto"](name=name, **{field: value})


def check_folder(folder: Path, name: str, ranks: int) -> None:
    """Make the folder of the files NAME.RANK.et.

    UserError for one that cannot be written, or has such files of others, and for more than MOST_RANKS.
    A reader counts on one file for each rank, so files of a trace of more ranks must not lie among them.
    """
    if ranks > MOST_RANKS:
        raise UserError(f"--chakra: writes a file for each rank, of at most {MOST_RANKS}, and there are {ranks}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"--chakra: {folder}: cannot be written: {reason}") from error
    mine = {_file(folder, name, rank) for rank in range(ranks)}
    for path in sorted(folder.glob(f"{name}.*.et")):
        if path not in mine:
            raise UserError(f"--chakra: {path} is of a trace of more ranks; remove it, or name another folder")


def save(folder: Path, name: str, traces: Sequence[RankTrace], about: dict[str, str]) -> None:
    """Write NAME.RANK.et for every rank; UserError where one cannot be written."""
    content = {id(trace): trace.encoded(about) for trace in traces}  # ranks that do the same share a trace
    for rank, trace in enumerate(traces):
        user_files.write(_file(folder, name, rank), content[id(trace)], "--chakra: ")


def _file(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}.{rank}.et"
