"""Classifies operations into kinds of work, by their type and name, or by the name of XLA's program.

    >>> kind_of("while/body/_1/gradient_tape/while/Conv2DBackpropInput", "_MklNativeConv2DBackpropInput")
    'convolutions, gradient of the input'
    >>> kind_of("while/cond/then/_5/while/cond/mul", "Mul"), kind_of("wrapped_multiply.1", "")
    ('update', 'element-wise')

A gradient that TensorFlow computes as another operation counts as that operation: a transposed convolution counts as a
gradient of the input.
"""

PRODUCTS = "matrix products"
FORWARD, BY_INPUT, BY_KERNEL = (
    "convolutions",
    "convolutions, gradient of the input",
    "convolutions, gradient of the kernel",
)
UPDATE, CHECKS, REDUCTIONS, ELEMENTWISE = "update", "figures and checks", "reductions", "element-wise"
POOLING, MOVING, RANDOM = "pooling", "moving and reshaping", "random numbers"

# The first that is part of the type decides.
_TYPES = {
    BY_KERNEL: ["BackpropFilter"],
    BY_INPUT: ["Conv2DBackpropInput", "Conv3DBackpropInput", "NativeBackpropInput"],
    FORWARD: ["Conv2D", "Conv3D", "DepthwiseConv2d"],
    PRODUCTS: ["MatMul", "Einsum"],
    POOLING: ["Pool"],
    UPDATE: ["ResourceApply", "Assign", "ResourceScatter", "ResourceSparseApply"],
    CHECKS: ["L2Loss", "IsFinite", "IsNan", "ArgMax", "InTopK", "LogicalAnd"],
    RANDOM: ["Stateless", "Random"],
    "softmax and cross entropy": ["Softmax"],
    "norms of TensorFlow": ["FusedBatchNorm", "LayerNorm"],
    REDUCTIONS: ["BiasAddGrad", "Sum", "Mean", "Max", "Min", "Prod", "All", "Any"],
    MOVING: [
        "Transpose", "Pad", "MirrorPad", "Concat", "Gather", "Slice", "Reshape", "Tile", "Cast", "Pack", "Split",
        "Reverse", "BroadcastTo", "ScatterNd", "UnsortedSegment", "OneHot", "Where", "Fill", "Bitcast", "Expand",
        "SpaceToBatch", "BatchToSpace", "ToTf",
    ],
}  # fmt: skip
# Types that contain a word of another kind.
_EXACTLY = {"Maximum": ELEMENTWISE, "Minimum": ELEMENTWISE, "AddN": ELEMENTWISE, "SelectV2": ELEMENTWISE}
_PROGRAMS = {  # XLA's names
    FORWARD: ["convolution", "conv2d"],
    PRODUCTS: ["matmul", "dot"],
    REDUCTIONS: ["reduce"],
    MOVING: ["copy", "transpose", "slice", "gather", "pad", "concatenate", "broadcast_in"],
    UPDATE: ["assign"],
}


def kind_of(name: str, type: str) -> str:
    """Returns the kind of an operation; an XLA program has no type."""
    if not type:
        return _first(_PROGRAMS, name.lower())
    for convolution in (BY_KERNEL, BY_INPUT, FORWARD):  # an optimizer may contain matrix products, but no convolutions
        if any(part in type for part in _TYPES[convolution]):
            return convolution
    if "/cond/then/" in name and "pool" not in name.lower():  # the engine writes updates under a condition
        return UPDATE
    return _EXACTLY.get(type) or _first(_TYPES, type)


def _first(kinds: dict[str, list[str]], text: str) -> str:
    return next((kind for kind, parts in kinds.items() if any(part in text for part in parts)), ELEMENTWISE)
