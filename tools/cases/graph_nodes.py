"""Nodes of TensorFlow's graphs, as tf.keras before 2.4 saved what functions of TensorFlow did to its tensors."""


def node(op, inputs, constants=None, **attributes):
    """A layer of one node with that many inputs, some of which may be constants by position."""

    def layer(*tensors):
        import tensorflow as tf
        from tf_keras.src.engine.base_layer import TensorFlowOpLayer

        definition = tf.compat.v1.NodeDef(name=op.lower(), op=op, input=[f"input_{i}" for i in range(inputs)])
        definition.attr["T"].type = tf.float32.as_datatype_enum
        for name, value in attributes.items():
            if isinstance(value, bool):
                definition.attr[name].b = value
            else:
                definition.attr[name].type = value.as_datatype_enum
        return TensorFlowOpLayer(definition.SerializeToString(), name=op, constants=constants)(tensors[0] if len(tensors) == 1 else list(tensors))

    return layer


def int32():
    import tensorflow as tf

    return tf.int32


def arithmetic(L, keras):
    x, y = keras.Input((3, 4), name="x"), keras.Input((3, 4), name="y")
    return keras.Model([x, y], node("Mul", 2)(node("AddV2", 2)(x, y), node("Sub", 2)(x, y)))


def constant(L, keras):
    x = keras.Input((3, 4), name="x")
    return keras.Model(x, node("Mul", 2, {1: 2.5})(node("Softmax", 1)(x)))


def reduction(L, keras):
    x = keras.Input((3, 4), name="x")
    return keras.Model(x, node("Mean", 2, {1: 1}, Tidx=int32(), keep_dims=True)(x))


LEGACY_CASES = {
    "TensorFlowOpLayer_arithmetic": arithmetic,
    "TensorFlowOpLayer_constant": constant,
    "TensorFlowOpLayer_reduction": reduction,
}
