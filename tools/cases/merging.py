"""Layers that bring tensors together: every form of their arguments, and inputs of several ranks."""


def merged(layer, *shapes, dtype="float32"):
    """A model of inputs of these shapes behind one layer."""

    def build(L, keras):
        inputs = [keras.Input(shape, name=f"in{i}", dtype=dtype) for i, shape in enumerate(shapes)]
        return keras.Model(inputs, layer(L)(inputs))

    return build


SAME = ((4, 6), (4, 6))

COMMON = {
    "Add_three": merged(lambda L: L.Add(), (4, 6), (4, 6), (4, 6)),
    "Add_ranks": merged(lambda L: L.Add(), (4, 6), (6,)),
    "Add_ones": merged(lambda L: L.Add(), (4, 6), (1, 6)),
    "Subtract_two": merged(lambda L: L.Subtract(), *SAME),
    "Subtract_ranks": merged(lambda L: L.Subtract(), (6,), (4, 6)),
    "Multiply_three": merged(lambda L: L.Multiply(), (4, 6), (4, 6), (4, 6)),
    "Multiply_channels": merged(lambda L: L.Multiply(), (4, 5, 6), (1, 1, 6)),
    "Average_three": merged(lambda L: L.Average(), (4, 6), (4, 6), (4, 6)),
    "Average_ranks": merged(lambda L: L.Average(), (4, 5, 6), (6,)),
    "Maximum_two": merged(lambda L: L.Maximum(), *SAME),
    "Minimum_three": merged(lambda L: L.Minimum(), (4, 6), (4, 6), (4, 6)),
    "Concatenate_last": merged(lambda L: L.Concatenate(), (4, 6), (4, 3)),
    "Concatenate_first": merged(lambda L: L.Concatenate(axis=1), (4, 6), (3, 6), (1, 6)),
    "Concatenate_negative": merged(lambda L: L.Concatenate(axis=-2), (4, 6), (3, 6)),
    "Dot_vectors": merged(lambda L: L.Dot(axes=1), (6,), (6,)),
    "Dot_normalized": merged(lambda L: L.Dot(axes=1, normalize=True), (6,), (6,)),
    "Dot_matrices": merged(lambda L: L.Dot(axes=(2, 2)), (4, 6), (5, 6)),
    "Dot_mixed": merged(lambda L: L.Dot(axes=(2, 1)), (4, 6), (6, 5)),
    "Dot_negative": merged(lambda L: L.Dot(axes=-1), (4, 6), (5, 6)),
    "Dot_vector_matrix": merged(lambda L: L.Dot(axes=(1, 2)), (6,), (5, 6)),
    "Dot_matrix_normalized": merged(lambda L: L.Dot(axes=(1, 1), normalize=True), (4, 6), (4, 5)),
}

CASES = dict(COMMON)
LEGACY_CASES = dict(COMMON)
