from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Document(_message.Message):
    __slots__ = ("name", "text", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: Text
    content: _struct_pb2.Struct
    def __init__(self, name: _Optional[str] = ..., text: _Optional[_Union[Text, _Mapping]] = ..., content: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Text(_message.Message):
    __slots__ = ("text", "name")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    text: str
    name: str
    def __init__(self, text: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("form", "job")
    class Form(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FORM_UNSPECIFIED: _ClassVar[Delivery.Form]
        FORM_MESSAGE: _ClassVar[Delivery.Form]
        FORM_JSON: _ClassVar[Delivery.Form]
    FORM_UNSPECIFIED: Delivery.Form
    FORM_MESSAGE: Delivery.Form
    FORM_JSON: Delivery.Form
    FORM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    form: Delivery.Form
    job: bool
    def __init__(self, form: _Optional[_Union[Delivery.Form, str]] = ..., job: _Optional[bool] = ...) -> None: ...

class SolveRequest(_message.Message):
    __slots__ = ("model", "cluster", "set", "pool", "stack", "allow", "calibration", "pins", "only", "max", "top", "framework", "objective", "within", "deadline", "step_limit_s", "pareto", "time_limit_s", "reference", "files", "memory_margin", "all_variants", "pools", "budget", "json", "delivery")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class OnlyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.ListValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.ListValue, _Mapping]] = ...) -> None: ...
    class MaxEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    STEP_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    PARETO_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MARGIN_FIELD_NUMBER: _ClassVar[int]
    ALL_VARIANTS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    model: Document
    cluster: Document
    set: _containers.MessageMap[str, _struct_pb2.Value]
    pool: str
    stack: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    calibration: Document
    pins: _containers.MessageMap[str, _struct_pb2.Value]
    only: _containers.MessageMap[str, _struct_pb2.ListValue]
    max: _containers.ScalarMap[str, int]
    top: int
    framework: str
    objective: str
    within: float
    deadline: _struct_pb2.Value
    step_limit_s: float
    pareto: _containers.RepeatedScalarFieldContainer[str]
    time_limit_s: float
    reference: Document
    files: _containers.ScalarMap[str, str]
    memory_margin: float
    all_variants: bool
    pools: str
    budget: _struct_pb2.Value
    json: str
    delivery: Delivery
    def __init__(self, model: _Optional[_Union[Document, _Mapping]] = ..., cluster: _Optional[_Union[Document, _Mapping]] = ..., set: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., pool: _Optional[str] = ..., stack: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., calibration: _Optional[_Union[Document, _Mapping]] = ..., pins: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., only: _Optional[_Mapping[str, _struct_pb2.ListValue]] = ..., max: _Optional[_Mapping[str, int]] = ..., top: _Optional[int] = ..., framework: _Optional[str] = ..., objective: _Optional[str] = ..., within: _Optional[float] = ..., deadline: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., step_limit_s: _Optional[float] = ..., pareto: _Optional[_Iterable[str]] = ..., time_limit_s: _Optional[float] = ..., reference: _Optional[_Union[Document, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., memory_margin: _Optional[float] = ..., all_variants: _Optional[bool] = ..., pools: _Optional[str] = ..., budget: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("model", "cluster", "set", "pool", "stack", "allow", "calibration", "pins", "framework", "reference", "files", "json", "delivery")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    model: Document
    cluster: Document
    set: _containers.MessageMap[str, _struct_pb2.Value]
    pool: str
    stack: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    calibration: Document
    pins: _containers.MessageMap[str, _struct_pb2.Value]
    framework: str
    reference: Document
    files: _containers.ScalarMap[str, str]
    json: str
    delivery: Delivery
    def __init__(self, model: _Optional[_Union[Document, _Mapping]] = ..., cluster: _Optional[_Union[Document, _Mapping]] = ..., set: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., pool: _Optional[str] = ..., stack: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., calibration: _Optional[_Union[Document, _Mapping]] = ..., pins: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., framework: _Optional[str] = ..., reference: _Optional[_Union[Document, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan", "term", "json", "delivery")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    term: str
    json: str
    delivery: Delivery
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., term: _Optional[str] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class EmitRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan", "launcher", "hosts", "json", "delivery")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FOR_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    launcher: _containers.RepeatedScalarFieldContainer[str]
    hosts: str
    json: str
    delivery: Delivery
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., launcher: _Optional[_Iterable[str]] = ..., hosts: _Optional[str] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., **kwargs) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan", "hosts", "with_text", "json", "delivery")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    WITH_TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    hosts: str
    with_text: bool
    json: str
    delivery: Delivery
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., hosts: _Optional[str] = ..., with_text: _Optional[bool] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan", "micro_batches", "json", "delivery")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    micro_batches: int
    json: str
    delivery: Delivery
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., micro_batches: _Optional[int] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class ReplanRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan", "lost", "gained", "via", "time_limit_s", "with_text", "gained_by_pool", "json", "delivery")
    class GainedByPoolEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    GAINED_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    WITH_TEXT_FIELD_NUMBER: _ClassVar[int]
    GAINED_BY_POOL_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    lost: _struct_pb2.Value
    gained: int
    via: str
    time_limit_s: float
    with_text: bool
    gained_by_pool: _containers.ScalarMap[str, int]
    json: str
    delivery: Delivery
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., lost: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., gained: _Optional[int] = ..., via: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., with_text: _Optional[bool] = ..., gained_by_pool: _Optional[_Mapping[str, int]] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class PlanOf(_message.Message):
    __slots__ = ("solve", "evaluate", "result", "plan")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    result: _struct_pb2.Struct
    plan: _struct_pb2.Value
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., result: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., plan: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ("a", "b", "with_text", "json", "delivery")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    WITH_TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    a: PlanOf
    b: PlanOf
    with_text: bool
    json: str
    delivery: Delivery
    def __init__(self, a: _Optional[_Union[PlanOf, _Mapping]] = ..., b: _Optional[_Union[PlanOf, _Mapping]] = ..., with_text: _Optional[bool] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("run", "cluster", "model", "files", "framework", "version", "env", "pins", "set", "pool", "calibration", "with_text", "json", "delivery")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    WITH_TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    run: Text
    cluster: Document
    model: Document
    files: _containers.ScalarMap[str, str]
    framework: str
    version: str
    env: _containers.ScalarMap[str, str]
    pins: _containers.MessageMap[str, _struct_pb2.Value]
    set: _containers.MessageMap[str, _struct_pb2.Value]
    pool: str
    calibration: Document
    with_text: bool
    json: str
    delivery: Delivery
    def __init__(self, run: _Optional[_Union[Text, _Mapping]] = ..., cluster: _Optional[_Union[Document, _Mapping]] = ..., model: _Optional[_Union[Document, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., framework: _Optional[str] = ..., version: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., pins: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., set: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., pool: _Optional[str] = ..., calibration: _Optional[_Union[Document, _Mapping]] = ..., with_text: _Optional[bool] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("model", "cluster", "set", "pool", "stack", "allow", "calibration", "pins", "only", "max", "scaling", "over", "to", "points", "framework", "time_limit_s", "reference", "files", "json")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    class OnlyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.ListValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.ListValue, _Mapping]] = ...) -> None: ...
    class MaxEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    model: Document
    cluster: Document
    set: _containers.MessageMap[str, _struct_pb2.Value]
    pool: str
    stack: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    calibration: Document
    pins: _containers.MessageMap[str, _struct_pb2.Value]
    only: _containers.MessageMap[str, _struct_pb2.ListValue]
    max: _containers.ScalarMap[str, int]
    scaling: str
    over: str
    to: int
    points: int
    framework: str
    time_limit_s: float
    reference: Document
    files: _containers.ScalarMap[str, str]
    json: str
    def __init__(self, model: _Optional[_Union[Document, _Mapping]] = ..., cluster: _Optional[_Union[Document, _Mapping]] = ..., set: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., pool: _Optional[str] = ..., stack: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., calibration: _Optional[_Union[Document, _Mapping]] = ..., pins: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., only: _Optional[_Mapping[str, _struct_pb2.ListValue]] = ..., max: _Optional[_Mapping[str, int]] = ..., scaling: _Optional[str] = ..., over: _Optional[str] = ..., to: _Optional[int] = ..., points: _Optional[int] = ..., framework: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., reference: _Optional[_Union[Document, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., json: _Optional[str] = ..., **kwargs) -> None: ...

class SweepRequest(_message.Message):
    __slots__ = ("spec", "point_limit_s", "time_limit_s", "calibration", "reference", "files", "json")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SPEC_FIELD_NUMBER: _ClassVar[int]
    POINT_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    spec: _struct_pb2.Struct
    point_limit_s: float
    time_limit_s: float
    calibration: Document
    reference: Document
    files: _containers.ScalarMap[str, str]
    json: str
    def __init__(self, spec: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., point_limit_s: _Optional[float] = ..., time_limit_s: _Optional[float] = ..., calibration: _Optional[_Union[Document, _Mapping]] = ..., reference: _Optional[_Union[Document, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., json: _Optional[str] = ...) -> None: ...

class CatalogueRequest(_message.Message):
    __slots__ = ("name", "json", "delivery")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    name: str
    json: str
    delivery: Delivery
    def __init__(self, name: _Optional[str] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class RulesRequest(_message.Message):
    __slots__ = ("code", "json", "delivery")
    CODE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    code: str
    json: str
    delivery: Delivery
    def __init__(self, code: _Optional[str] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class CheckSpecRequest(_message.Message):
    __slots__ = ("document", "json", "delivery")
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    document: Document
    json: str
    delivery: Delivery
    def __init__(self, document: _Optional[_Union[Document, _Mapping]] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class BatchSolveRequest(_message.Message):
    __slots__ = ("jobs", "clusters", "counts", "framework", "time_limit_s", "json")
    class JobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Document
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Document, _Mapping]] = ...) -> None: ...
    class ClustersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Document
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Document, _Mapping]] = ...) -> None: ...
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.MessageMap[str, Document]
    clusters: _containers.MessageMap[str, Document]
    counts: _containers.RepeatedScalarFieldContainer[int]
    framework: str
    time_limit_s: float
    json: str
    def __init__(self, jobs: _Optional[_Mapping[str, Document]] = ..., clusters: _Optional[_Mapping[str, Document]] = ..., counts: _Optional[_Iterable[int]] = ..., framework: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., json: _Optional[str] = ...) -> None: ...

class CurvePoint(_message.Message):
    __slots__ = ("pool", "nodes", "tokens_per_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    nodes: int
    tokens_per_s: float
    def __init__(self, pool: _Optional[str] = ..., nodes: _Optional[int] = ..., tokens_per_s: _Optional[float] = ...) -> None: ...

class JobCurve(_message.Message):
    __slots__ = ("name", "curve", "weight", "tokens", "deadline_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    curve: _containers.RepeatedCompositeFieldContainer[CurvePoint]
    weight: float
    tokens: float
    deadline_s: float
    def __init__(self, name: _Optional[str] = ..., curve: _Optional[_Iterable[_Union[CurvePoint, _Mapping]]] = ..., weight: _Optional[float] = ..., tokens: _Optional[float] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("free", "jobs", "objective", "json", "delivery")
    class FreeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FREE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    free: _containers.ScalarMap[str, int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobCurve]
    objective: str
    json: str
    delivery: Delivery
    def __init__(self, free: _Optional[_Mapping[str, int]] = ..., jobs: _Optional[_Iterable[_Union[JobCurve, _Mapping]]] = ..., objective: _Optional[str] = ..., json: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ("solve", "evaluate", "explain", "emit", "check", "diff", "scale", "sweep", "replan", "place", "catalogue", "rules", "check_spec", "allocate", "batch_solve", "trace", "time_limit_s", "labels", "webhook")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    EMIT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    REPLAN_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    CHECK_SPEC_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SOLVE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    solve: SolveRequest
    evaluate: EvaluateRequest
    explain: ExplainRequest
    emit: EmitRequest
    check: CheckRequest
    diff: DiffRequest
    scale: ScaleRequest
    sweep: SweepRequest
    replan: ReplanRequest
    place: PlaceRequest
    catalogue: CatalogueRequest
    rules: RulesRequest
    check_spec: CheckSpecRequest
    allocate: AllocateRequest
    batch_solve: BatchSolveRequest
    trace: TraceRequest
    time_limit_s: float
    labels: _containers.ScalarMap[str, str]
    webhook: JobWebhook
    def __init__(self, solve: _Optional[_Union[SolveRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., explain: _Optional[_Union[ExplainRequest, _Mapping]] = ..., emit: _Optional[_Union[EmitRequest, _Mapping]] = ..., check: _Optional[_Union[CheckRequest, _Mapping]] = ..., diff: _Optional[_Union[DiffRequest, _Mapping]] = ..., scale: _Optional[_Union[ScaleRequest, _Mapping]] = ..., sweep: _Optional[_Union[SweepRequest, _Mapping]] = ..., replan: _Optional[_Union[ReplanRequest, _Mapping]] = ..., place: _Optional[_Union[PlaceRequest, _Mapping]] = ..., catalogue: _Optional[_Union[CatalogueRequest, _Mapping]] = ..., rules: _Optional[_Union[RulesRequest, _Mapping]] = ..., check_spec: _Optional[_Union[CheckSpecRequest, _Mapping]] = ..., allocate: _Optional[_Union[AllocateRequest, _Mapping]] = ..., batch_solve: _Optional[_Union[BatchSolveRequest, _Mapping]] = ..., trace: _Optional[_Union[TraceRequest, _Mapping]] = ..., time_limit_s: _Optional[float] = ..., labels: _Optional[_Mapping[str, str]] = ..., webhook: _Optional[_Union[JobWebhook, _Mapping]] = ...) -> None: ...

class JobWebhook(_message.Message):
    __slots__ = ("url", "secret", "states")
    URL_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    url: str
    secret: str
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, url: _Optional[str] = ..., secret: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("state", "limit", "cursor", "labels", "call", "created_after", "created_before")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    CREATED_AFTER_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    state: Job.State
    limit: int
    cursor: str
    labels: str
    call: str
    created_after: float
    created_before: float
    def __init__(self, state: _Optional[_Union[Job.State, str]] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ..., labels: _Optional[str] = ..., call: _Optional[str] = ..., created_after: _Optional[float] = ..., created_before: _Optional[float] = ...) -> None: ...

class WatchJobsRequest(_message.Message):
    __slots__ = ("resource_version", "labels", "call", "timeout_s", "state")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    resource_version: int
    labels: str
    call: str
    timeout_s: float
    state: Job.State
    def __init__(self, resource_version: _Optional[int] = ..., labels: _Optional[str] = ..., call: _Optional[str] = ..., timeout_s: _Optional[float] = ..., state: _Optional[_Union[Job.State, str]] = ...) -> None: ...

class CreateWebhookRequest(_message.Message):
    __slots__ = ("url", "secret", "states", "labels")
    URL_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    url: str
    secret: str
    states: _containers.RepeatedScalarFieldContainer[str]
    labels: str
    def __init__(self, url: _Optional[str] = ..., secret: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ..., labels: _Optional[str] = ...) -> None: ...

class ListWebhooksRequest(_message.Message):
    __slots__ = ("limit", "cursor")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    limit: int
    cursor: str
    def __init__(self, limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class GetWebhookRequest(_message.Message):
    __slots__ = ("webhook_id",)
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    def __init__(self, webhook_id: _Optional[str] = ...) -> None: ...

class DeleteWebhookRequest(_message.Message):
    __slots__ = ("webhook_id",)
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    def __init__(self, webhook_id: _Optional[str] = ...) -> None: ...

class TestWebhookRequest(_message.Message):
    __slots__ = ("webhook_id",)
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    def __init__(self, webhook_id: _Optional[str] = ...) -> None: ...

class ListDeliveriesRequest(_message.Message):
    __slots__ = ("webhook_id", "limit", "cursor")
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    limit: int
    cursor: str
    def __init__(self, webhook_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id", "after")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: int
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("job_id", "limit", "cursor", "form", "so_far")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SO_FAR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    limit: int
    cursor: str
    form: Delivery.Form
    so_far: bool
    def __init__(self, job_id: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ..., form: _Optional[_Union[Delivery.Form, str]] = ..., so_far: _Optional[bool] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SolveResponse(_message.Message):
    __slots__ = ("answer", "json", "job", "etag")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    answer: SolveAnswer
    json: str
    job: Job
    etag: str
    def __init__(self, answer: _Optional[_Union[SolveAnswer, _Mapping]] = ..., json: _Optional[str] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("answer", "json", "job", "etag")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    answer: _struct_pb2.Struct
    json: str
    job: Job
    etag: str
    def __init__(self, answer: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., json: _Optional[str] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class SolveStreamResponse(_message.Message):
    __slots__ = ("progress", "job", "response")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    job: Job
    response: SolveResponse
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., response: _Optional[_Union[SolveResponse, _Mapping]] = ...) -> None: ...

class SolveAnswer(_message.Message):
    __slots__ = ("schema_version", "result_id", "inputs", "calibration", "complete", "stopped", "gap", "devices", "counts", "certificate", "rejected", "why_first", "plans", "closest", "uneven_tried", "conflicts", "relaxations", "notes", "alternatives", "memory_margin", "together", "more")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESULT_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIRST_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    CLOSEST_FIELD_NUMBER: _ClassVar[int]
    UNEVEN_TRIED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    RELAXATIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MARGIN_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    schema_version: str
    result_id: str
    inputs: _struct_pb2.Struct
    calibration: _struct_pb2.Struct
    complete: bool
    stopped: str
    gap: float
    devices: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    counts: _containers.ScalarMap[str, int]
    certificate: _struct_pb2.Struct
    rejected: _containers.RepeatedCompositeFieldContainer[Rejected]
    why_first: _containers.RepeatedScalarFieldContainer[str]
    plans: _containers.RepeatedCompositeFieldContainer[Plan]
    closest: Closest
    uneven_tried: _struct_pb2.Struct
    conflicts: _containers.RepeatedCompositeFieldContainer[_struct_pb2.ListValue]
    relaxations: _containers.RepeatedCompositeFieldContainer[Relaxed]
    notes: _containers.RepeatedScalarFieldContainer[str]
    alternatives: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    memory_margin: _struct_pb2.Struct
    together: _struct_pb2.Struct
    more: _struct_pb2.Struct
    def __init__(self, schema_version: _Optional[str] = ..., result_id: _Optional[str] = ..., inputs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., calibration: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., complete: _Optional[bool] = ..., stopped: _Optional[str] = ..., gap: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., counts: _Optional[_Mapping[str, int]] = ..., certificate: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., rejected: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ..., why_first: _Optional[_Iterable[str]] = ..., plans: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ..., closest: _Optional[_Union[Closest, _Mapping]] = ..., uneven_tried: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., conflicts: _Optional[_Iterable[_Union[_struct_pb2.ListValue, _Mapping]]] = ..., relaxations: _Optional[_Iterable[_Union[Relaxed, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., alternatives: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., memory_margin: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., together: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("rank", "plan_id", "pool", "precision", "layout", "step_time_s", "step_time_p10_s", "step_time_p90_s", "interval_regime", "tokens_per_s", "tokens_per_s_per_device", "mfu", "training_s", "tie", "group", "closed_form_step_time_s", "time", "memory", "comm", "warnings", "runs_on", "idle_devices", "run", "mfu_bf16", "first_releases", "n_variants", "more")
    class TimeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FirstReleasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_P10_S_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_P90_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_REGIME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    MFU_FIELD_NUMBER: _ClassVar[int]
    TRAINING_S_FIELD_NUMBER: _ClassVar[int]
    TIE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FORM_STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    RUNS_ON_FIELD_NUMBER: _ClassVar[int]
    IDLE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MFU_BF16_FIELD_NUMBER: _ClassVar[int]
    FIRST_RELEASES_FIELD_NUMBER: _ClassVar[int]
    N_VARIANTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    plan_id: str
    pool: str
    precision: str
    layout: Layout
    step_time_s: float
    step_time_p10_s: float
    step_time_p90_s: float
    interval_regime: str
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    training_s: float
    tie: bool
    group: int
    closed_form_step_time_s: float
    time: _containers.ScalarMap[str, float]
    memory: Memory
    comm: _containers.RepeatedCompositeFieldContainer[Transfer]
    warnings: _containers.RepeatedCompositeFieldContainer[Warned]
    runs_on: _containers.RepeatedScalarFieldContainer[str]
    idle_devices: int
    run: _struct_pb2.Struct
    mfu_bf16: float
    first_releases: _containers.ScalarMap[str, str]
    n_variants: int
    more: _struct_pb2.Struct
    def __init__(self, rank: _Optional[int] = ..., plan_id: _Optional[str] = ..., pool: _Optional[str] = ..., precision: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., step_time_s: _Optional[float] = ..., step_time_p10_s: _Optional[float] = ..., step_time_p90_s: _Optional[float] = ..., interval_regime: _Optional[str] = ..., tokens_per_s: _Optional[float] = ..., tokens_per_s_per_device: _Optional[float] = ..., mfu: _Optional[float] = ..., training_s: _Optional[float] = ..., tie: _Optional[bool] = ..., group: _Optional[int] = ..., closed_form_step_time_s: _Optional[float] = ..., time: _Optional[_Mapping[str, float]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., comm: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Warned, _Mapping]]] = ..., runs_on: _Optional[_Iterable[str]] = ..., idle_devices: _Optional[int] = ..., run: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., mfu_bf16: _Optional[float] = ..., first_releases: _Optional[_Mapping[str, str]] = ..., n_variants: _Optional[int] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("n_devices", "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "dp_shard", "mbs", "gbs", "n_micro", "schedule", "sp", "recompute", "recompute_modules", "recompute_layers", "split", "stage_layers", "rank_order", "more")
    N_DEVICES_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    EP_FIELD_NUMBER: _ClassVar[int]
    ETP_FIELD_NUMBER: _ClassVar[int]
    VPP_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    DP_SHARD_FIELD_NUMBER: _ClassVar[int]
    MBS_FIELD_NUMBER: _ClassVar[int]
    GBS_FIELD_NUMBER: _ClassVar[int]
    N_MICRO_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SP_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_MODULES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    STAGE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    RANK_ORDER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    n_devices: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    vpp: int
    zero: int
    dp_shard: int
    mbs: int
    gbs: int
    n_micro: int
    schedule: str
    sp: bool
    recompute: str
    recompute_modules: _containers.RepeatedScalarFieldContainer[str]
    recompute_layers: int
    split: str
    stage_layers: _containers.RepeatedScalarFieldContainer[int]
    rank_order: str
    more: _struct_pb2.Struct
    def __init__(self, n_devices: _Optional[int] = ..., tp: _Optional[int] = ..., pp: _Optional[int] = ..., dp: _Optional[int] = ..., cp: _Optional[int] = ..., ep: _Optional[int] = ..., etp: _Optional[int] = ..., vpp: _Optional[int] = ..., zero: _Optional[int] = ..., dp_shard: _Optional[int] = ..., mbs: _Optional[int] = ..., gbs: _Optional[int] = ..., n_micro: _Optional[int] = ..., schedule: _Optional[str] = ..., sp: _Optional[bool] = ..., recompute: _Optional[str] = ..., recompute_modules: _Optional[_Iterable[str]] = ..., recompute_layers: _Optional[int] = ..., split: _Optional[str] = ..., stage_layers: _Optional[_Iterable[int]] = ..., rank_order: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("peak_bytes", "peak_stage", "usable_bytes", "stages", "more")
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_STAGE_FIELD_NUMBER: _ClassVar[int]
    USABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    peak_bytes: int
    peak_stage: int
    usable_bytes: int
    stages: _containers.RepeatedCompositeFieldContainer[StageMemory]
    more: _struct_pb2.Struct
    def __init__(self, peak_bytes: _Optional[int] = ..., peak_stage: _Optional[int] = ..., usable_bytes: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageMemory, _Mapping]]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class StageMemory(_message.Message):
    __slots__ = ("states", "activations", "logits", "working", "fragmentation", "overhead", "more")
    STATES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    states: int
    activations: int
    logits: int
    working: int
    fragmentation: int
    overhead: int
    more: _struct_pb2.Struct
    def __init__(self, states: _Optional[int] = ..., activations: _Optional[int] = ..., logits: _Optional[int] = ..., working: _Optional[int] = ..., fragmentation: _Optional[int] = ..., overhead: _Optional[int] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("axis", "collective", "algorithm", "tier", "group_size", "n_calls", "message_bytes", "bytes", "time_s", "exposed_s", "dtype", "more")
    AXIS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    N_CALLS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    axis: str
    collective: str
    algorithm: str
    tier: str
    group_size: int
    n_calls: float
    message_bytes: int
    bytes: int
    time_s: float
    exposed_s: float
    dtype: str
    more: _struct_pb2.Struct
    def __init__(self, axis: _Optional[str] = ..., collective: _Optional[str] = ..., algorithm: _Optional[str] = ..., tier: _Optional[str] = ..., group_size: _Optional[int] = ..., n_calls: _Optional[float] = ..., message_bytes: _Optional[int] = ..., bytes: _Optional[int] = ..., time_s: _Optional[float] = ..., exposed_s: _Optional[float] = ..., dtype: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Warned(_message.Message):
    __slots__ = ("code", "text", "more")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    more: _struct_pb2.Struct
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("code", "n", "of", "more")
    CODE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    code: str
    n: int
    of: str
    more: _struct_pb2.Struct
    def __init__(self, code: _Optional[str] = ..., n: _Optional[int] = ..., of: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Closest(_message.Message):
    __slots__ = ("layout", "peak_bytes", "usable_bytes", "more")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    USABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    layout: Layout
    peak_bytes: int
    usable_bytes: int
    more: _struct_pb2.Struct
    def __init__(self, layout: _Optional[_Union[Layout, _Mapping]] = ..., peak_bytes: _Optional[int] = ..., usable_bytes: _Optional[int] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Relaxed(_message.Message):
    __slots__ = ("change", "kind", "factor", "command", "layout", "step_time_s", "more")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    change: str
    kind: str
    factor: float
    command: str
    layout: Layout
    step_time_s: float
    more: _struct_pb2.Struct
    def __init__(self, change: _Optional[str] = ..., kind: _Optional[str] = ..., factor: _Optional[float] = ..., command: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., step_time_s: _Optional[float] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "owner", "call", "request_id", "state", "attempts", "n_events", "created_at", "started_at", "finished_at", "complete", "etag", "problem", "content_id", "group", "priority", "labels", "resource_version", "result", "more")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Job.State]
        PENDING: _ClassVar[Job.State]
        RUNNING: _ClassVar[Job.State]
        SUCCEEDED: _ClassVar[Job.State]
        FAILED: _ClassVar[Job.State]
        CANCELLED: _ClassVar[Job.State]
        EXPIRED: _ClassVar[Job.State]
    STATE_UNSPECIFIED: Job.State
    PENDING: Job.State
    RUNNING: Job.State
    SUCCEEDED: Job.State
    FAILED: Job.State
    CANCELLED: Job.State
    EXPIRED: Job.State
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    N_EVENTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    owner: str
    call: str
    request_id: str
    state: Job.State
    attempts: int
    n_events: int
    created_at: float
    started_at: float
    finished_at: float
    complete: bool
    etag: str
    problem: Problem
    content_id: str
    group: str
    priority: str
    labels: _containers.ScalarMap[str, str]
    resource_version: int
    result: GetResultResponse
    more: _struct_pb2.Struct
    def __init__(self, job_id: _Optional[str] = ..., owner: _Optional[str] = ..., call: _Optional[str] = ..., request_id: _Optional[str] = ..., state: _Optional[_Union[Job.State, str]] = ..., attempts: _Optional[int] = ..., n_events: _Optional[int] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., complete: _Optional[bool] = ..., etag: _Optional[str] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ..., content_id: _Optional[str] = ..., group: _Optional[str] = ..., priority: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., resource_version: _Optional[int] = ..., result: _Optional[_Union[GetResultResponse, _Mapping]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_cursor", "resource_version")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_cursor: str
    resource_version: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., resource_version: _Optional[int] = ...) -> None: ...

class JobChange(_message.Message):
    __slots__ = ("type", "resource_version", "job")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[JobChange.Type]
        ADDED: _ClassVar[JobChange.Type]
        MODIFIED: _ClassVar[JobChange.Type]
        DELETED: _ClassVar[JobChange.Type]
        BOOKMARK: _ClassVar[JobChange.Type]
    TYPE_UNSPECIFIED: JobChange.Type
    ADDED: JobChange.Type
    MODIFIED: JobChange.Type
    DELETED: JobChange.Type
    BOOKMARK: JobChange.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    type: JobChange.Type
    resource_version: int
    job: Job
    def __init__(self, type: _Optional[_Union[JobChange.Type, str]] = ..., resource_version: _Optional[int] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Webhook(_message.Message):
    __slots__ = ("webhook_id", "owner", "url", "states", "labels", "job_id", "created_at", "n_dropped", "secret", "more")
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    N_DROPPED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    owner: str
    url: str
    states: _containers.RepeatedScalarFieldContainer[str]
    labels: str
    job_id: str
    created_at: float
    n_dropped: int
    secret: str
    more: _struct_pb2.Struct
    def __init__(self, webhook_id: _Optional[str] = ..., owner: _Optional[str] = ..., url: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ..., labels: _Optional[str] = ..., job_id: _Optional[str] = ..., created_at: _Optional[float] = ..., n_dropped: _Optional[int] = ..., secret: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListWebhooksResponse(_message.Message):
    __slots__ = ("webhooks", "next_cursor")
    WEBHOOKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    webhooks: _containers.RepeatedCompositeFieldContainer[Webhook]
    next_cursor: str
    def __init__(self, webhooks: _Optional[_Iterable[_Union[Webhook, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class DeleteWebhookResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WebhookDelivery(_message.Message):
    __slots__ = ("delivery_id", "webhook_id", "job_id", "type", "state", "attempts", "status", "error", "created_at", "finished_at", "more")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[WebhookDelivery.State]
        WAITING: _ClassVar[WebhookDelivery.State]
        DELIVERED: _ClassVar[WebhookDelivery.State]
        FAILED: _ClassVar[WebhookDelivery.State]
    STATE_UNSPECIFIED: WebhookDelivery.State
    WAITING: WebhookDelivery.State
    DELIVERED: WebhookDelivery.State
    FAILED: WebhookDelivery.State
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    delivery_id: str
    webhook_id: str
    job_id: str
    type: str
    state: WebhookDelivery.State
    attempts: int
    status: int
    error: str
    created_at: float
    finished_at: float
    more: _struct_pb2.Struct
    def __init__(self, delivery_id: _Optional[str] = ..., webhook_id: _Optional[str] = ..., job_id: _Optional[str] = ..., type: _Optional[str] = ..., state: _Optional[_Union[WebhookDelivery.State, str]] = ..., attempts: _Optional[int] = ..., status: _Optional[int] = ..., error: _Optional[str] = ..., created_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListDeliveriesResponse(_message.Message):
    __slots__ = ("deliveries", "next_cursor")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[WebhookDelivery]
    next_cursor: str
    def __init__(self, deliveries: _Optional[_Iterable[_Union[WebhookDelivery, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("n", "state", "attempt", "reason", "progress")
    N_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    n: int
    state: Job.State
    attempt: int
    reason: str
    progress: Progress
    def __init__(self, n: _Optional[int] = ..., state: _Optional[_Union[Job.State, str]] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done", "total", "best_step_time_s")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BEST_STEP_TIME_S_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    best_step_time_s: float
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., best_step_time_s: _Optional[float] = ...) -> None: ...

class GetResultResponse(_message.Message):
    __slots__ = ("solve", "answer", "json", "page", "etag", "complete")
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    solve: SolveAnswer
    answer: _struct_pb2.Struct
    json: str
    page: Page
    etag: str
    complete: bool
    def __init__(self, solve: _Optional[_Union[SolveAnswer, _Mapping]] = ..., answer: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., json: _Optional[str] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., etag: _Optional[str] = ..., complete: _Optional[bool] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("items", "total", "next_cursor", "list", "answer", "more")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    total: int
    next_cursor: str
    list: str
    answer: _struct_pb2.Struct
    more: _struct_pb2.Struct
    def __init__(self, items: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., total: _Optional[int] = ..., next_cursor: _Optional[str] = ..., list: _Optional[str] = ..., answer: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("group", "weight", "priority", "highest_priority", "window_s", "quotas", "more")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    group: str
    weight: float
    priority: str
    highest_priority: str
    window_s: float
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    more: _struct_pb2.Struct
    def __init__(self, group: _Optional[str] = ..., weight: _Optional[float] = ..., priority: _Optional[str] = ..., highest_priority: _Optional[str] = ..., window_s: _Optional[float] = ..., quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("quota", "used", "limit", "frees_in_s", "more")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FREES_IN_S_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    quota: str
    used: float
    limit: float
    frees_in_s: float
    more: _struct_pb2.Struct
    def __init__(self, quota: _Optional[str] = ..., used: _Optional[float] = ..., limit: _Optional[float] = ..., frees_in_s: _Optional[float] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class QuotaExceeded(_message.Message):
    __slots__ = ("group", "quota", "used", "limit", "frees_in_s", "window_s", "more")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FREES_IN_S_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    group: str
    quota: str
    used: float
    limit: float
    frees_in_s: float
    window_s: float
    more: _struct_pb2.Struct
    def __init__(self, group: _Optional[str] = ..., quota: _Optional[str] = ..., used: _Optional[float] = ..., limit: _Optional[float] = ..., frees_in_s: _Optional[float] = ..., window_s: _Optional[float] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class GetVersionResponse(_message.Message):
    __slots__ = ("version", "api", "calls")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    version: str
    api: str
    calls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., api: _Optional[str] = ..., calls: _Optional[_Iterable[str]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("type", "title", "status", "detail", "code", "instance", "errors", "retry_after_s", "quota", "more")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    errors: _containers.RepeatedCompositeFieldContainer[Fault]
    retry_after_s: float
    quota: QuotaExceeded
    more: _struct_pb2.Struct
    def __init__(self, type: _Optional[str] = ..., title: _Optional[str] = ..., status: _Optional[int] = ..., detail: _Optional[str] = ..., code: _Optional[str] = ..., instance: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ..., retry_after_s: _Optional[float] = ..., quota: _Optional[_Union[QuotaExceeded, _Mapping]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("message", "fix", "field", "source", "line", "column", "rule", "more")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    message: str
    fix: str
    field: str
    source: str
    line: int
    column: int
    rule: str
    more: _struct_pb2.Struct
    def __init__(self, message: _Optional[str] = ..., fix: _Optional[str] = ..., field: _Optional[str] = ..., source: _Optional[str] = ..., line: _Optional[int] = ..., column: _Optional[int] = ..., rule: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
