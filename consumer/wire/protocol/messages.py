"""Canal's protobuf messages, built from a table of their fields.

The numbers are Canal's own (its protocol has not changed them since 1.0). A field marked ``?`` is alone in a oneof, as
since Canal 1.1.1: whether it was sent is known, and a default value is sent when it is set. Enums are int32 here, which
is the same on the wire. The messages live in a descriptor pool of their own, so that a process that also loads a canal
client's generated code has no clash of names.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# message: number name type; "*" repeated, "?" with presence. A type that is a message's name is that message.
_FIELDS: Final = {
    "Packet": "1 magic_number int32?, 2 version int32?, 3 type int32, 4 compression int32?, 5 body bytes",
    "Handshake": "1 communication_encoding string?, 2 seeds bytes, 3 supported_compressions int32",
    "ClientAuth": "1 username string, 2 password bytes, 3 net_read_timeout int32?, 4 net_write_timeout int32?, "
    "5 destination string, 6 client_id string, 7 filter string, 8 start_timestamp int64",
    "Ack": "1 error_code int32?, 2 error_message string",
    "Sub": "1 destination string, 2 client_id string, 7 filter string",
    "Unsub": "1 destination string, 2 client_id string, 7 filter string",
    "Get": "1 destination string, 2 client_id string, 3 fetch_size int32, 4 timeout int64?, 5 unit int32?, 6 auto_ack bool?",
    "Messages": "1 batch_id int64, 2 messages bytes*",
    "ClientAck": "1 destination string, 2 client_id string, 3 batch_id int64",
    "ClientRollback": "1 destination string, 2 client_id string, 3 batch_id int64",
    "Pair": "1 key string, 2 value string",
    "Header": "1 version int32?, 2 logfileName string, 3 logfileOffset int64, 4 serverId int64, 5 serverenCode string, "
    "6 executeTime int64, 7 sourceType int32?, 8 schemaName string, 9 tableName string, 10 eventLength int64, "
    "11 eventType int32?, 12 props Pair*, 13 gtid string",
    "Entry": "1 header Header, 2 entryType int32?, 3 storeValue bytes",
    "Column": "1 index int32, 2 sqlType int32, 3 name string, 4 isKey bool, 5 updated bool, 6 isNull bool?, 7 props Pair*, "
    "8 value string, 9 length int32, 10 mysqlType string",
    "RowData": "1 beforeColumns Column*, 2 afterColumns Column*, 3 props Pair*",
    "RowChange": "1 tableId int64, 2 eventType int32?, 10 isDdl bool?, 11 sql string, 12 rowDatas RowData*, 13 props Pair*, "
    "14 ddlSchemaName string",
    "TransactionBegin": "1 executeTime int64, 2 transactionId string, 3 props Pair*, 4 threadId int64",
    "TransactionEnd": "1 executeTime int64, 2 transactionId string, 3 props Pair*",
}
_TYPES: Final = {
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}
_PACKAGE: Final = "shmstore.wire"


class PacketType(IntEnum):
    """What a packet holds. Canal never uses 9 to 11."""

    UNSET = 0
    HANDSHAKE = 1
    CLIENTAUTHENTICATION = 2
    ACK = 3
    SUBSCRIPTION = 4
    UNSUBSCRIPTION = 5
    GET = 6
    MESSAGES = 7
    CLIENTACK = 8
    SHUTDOWN = 9
    DUMP = 10
    HEARTBEAT = 11
    CLIENTROLLBACK = 12


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="shmstore/wire.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, label, kind = field.split()
            base = kind.rstrip("?*")
            added = message.field.add(name=label, number=int(number), label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
            if base in _TYPES:
                added.type = _TYPES[base]
            else:
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{base}"
            if kind.endswith("*"):
                added.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            elif kind.endswith("?"):
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"{label}_present")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_MESSAGES: Final = _build()

Packet: Any = _MESSAGES["Packet"]
Handshake: Any = _MESSAGES["Handshake"]
ClientAuth: Any = _MESSAGES["ClientAuth"]
Ack: Any = _MESSAGES["Ack"]
Sub: Any = _MESSAGES["Sub"]
Unsub: Any = _MESSAGES["Unsub"]
Get: Any = _MESSAGES["Get"]
Messages: Any = _MESSAGES["Messages"]
ClientAck: Any = _MESSAGES["ClientAck"]
ClientRollback: Any = _MESSAGES["ClientRollback"]
Pair: Any = _MESSAGES["Pair"]
Header: Any = _MESSAGES["Header"]
Entry: Any = _MESSAGES["Entry"]
Column: Any = _MESSAGES["Column"]
RowData: Any = _MESSAGES["RowData"]
RowChange: Any = _MESSAGES["RowChange"]
TransactionBegin: Any = _MESSAGES["TransactionBegin"]
TransactionEnd: Any = _MESSAGES["TransactionEnd"]
