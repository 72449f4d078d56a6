"""What `help` and `inspect.signature` say of an operator, from its op."""

from __future__ import annotations

from inspect import Parameter, Signature

from sparsekit.model.op import REQUIRED, RETURN_PREFIX, Op, Scalar, Tensor

# What holds of every operator.
_RULES = (
    "An output that is given by keyword is written into, and returned. The last stride of a tensor",
    "is 1. All tensors are on one device; work runs there, on its current stream. prepare(), with",
    "the same arguments, builds and loads what such a call needs, for graph capture.",
    "",
    "Raises TypeError for an element type and for an argument that is missing or unknown,",
    "ValueError for shapes, strides, devices and values, both before anything is launched;",
    "GpuError for the driver.",
)


def signature_of(op: Op) -> Signature:
    """The callable's: inputs in order, then by keyword what is returned on demand, and outputs.

    What Python has no way to spell, an input that must be given behind one that need not, is shown
    as by keyword only, and so is what follows it.
    """
    parameters: list[Parameter] = []
    defaults = [_default(i) for i in op.inputs]
    for at, (argument, default) in enumerate(zip(op.inputs, defaults, strict=True)):
        required = [d is Parameter.empty for d in defaults[: at + 1]]
        spelt = required == sorted(required, reverse=True)
        kind = Parameter.POSITIONAL_OR_KEYWORD if spelt else Parameter.KEYWORD_ONLY
        parameters.append(Parameter(argument.name, kind, default=default))
    on_demand = [f"{RETURN_PREFIX}{o.name}" for o in op.outputs if o.optional]
    parameters += [Parameter(n, Parameter.KEYWORD_ONLY, default=False) for n in on_demand]
    parameters += [Parameter(o.name, Parameter.KEYWORD_ONLY, default=None) for o in op.outputs]
    return Signature(parameters)


def doc_of(op: Op) -> str:
    """Summary, arguments with shape and element type, results, and what is raised."""
    several = "a tuple of " if sum(not o.optional for o in op.outputs) > 1 else ""
    return "\n".join(
        [
            op.summary, "",
            f"{op.name}{signature_of(op)}", "",
            *(_of_input(i) for i in op.inputs), "",
            f"Returns {several}".rstrip(), *(f"  {_of_output(o)}" for o in op.outputs), "",
            *_RULES,
        ]
    )  # fmt: skip


def _default(argument: Tensor | Scalar) -> object:
    if isinstance(argument, Tensor):
        return None if argument.optional else Parameter.empty
    return Parameter.empty if argument.default is REQUIRED else argument.default


def _of_input(argument: Tensor | Scalar) -> str:
    if isinstance(argument, Scalar):
        what = (
            "the name of an element type, or torch's" if argument.type == "dtype" else argument.type
        )
        return f"{argument.name}: {what}"
    return f"{_of_tensor(argument)}{', or None' if argument.optional else ''}"


def _of_output(output: Tensor) -> str:
    on_demand = f", with {RETURN_PREFIX}{output.name}=True" if output.optional else ""
    return f"{_of_tensor(output)}{on_demand}"


def _of_tensor(tensor: Tensor) -> str:
    layout = f", {tensor.layout_text}" if tensor.layout_text else ""
    types = " or ".join(t.strip("{}") for t in tensor.dtypes)  # of an output, a scalar's name
    return f"{tensor.name}: {tensor.shape_text} {types}{layout}"
