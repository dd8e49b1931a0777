"""Convolutions with a kernel for every position, which only tf-keras has."""


def row(shape, *layers):
    return lambda L, keras: keras.Sequential([keras.Input(shape), *(make(L) for make in layers)])


LEGACY_CASES = {
    "LocallyConnected1D_strides": row((9, 3), lambda L: L.LocallyConnected1D(4, 3, strides=2, activation="tanh")),
    "LocallyConnected1D_first": row((3, 9), lambda L: L.LocallyConnected1D(4, 2, data_format="channels_first")),
    "LocallyConnected1D_no_bias": row((6, 2), lambda L: L.LocallyConnected1D(3, 2, use_bias=False)),
    "LocallyConnected1D_dense": row((9, 3), lambda L: L.LocallyConnected1D(4, 3, strides=2, padding="same", implementation=2)),
    "LocallyConnected1D_used": row((9, 3), lambda L: L.LocallyConnected1D(4, 3, strides=2, implementation=3)),
    "LocallyConnected2D_dense": row((2, 5, 6), lambda L: L.LocallyConnected2D(3, (2, 3), implementation=2, data_format="channels_first")),
    "LocallyConnected2D_used": row((2, 5, 6), lambda L: L.LocallyConnected2D(3, (2, 3), implementation=3, data_format="channels_first")),
    "LocallyConnected2D_strides": row((6, 7, 2), lambda L: L.LocallyConnected2D(3, (2, 3), strides=(2, 1), activation="relu")),
    "LocallyConnected2D_first": row((2, 6, 7), lambda L: L.LocallyConnected2D(3, (2, 3), data_format="channels_first")),
}
