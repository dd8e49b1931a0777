"""Pooling: adaptive windows, uneven strides, both data formats."""


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


CASES = {
    "AdaptiveAveragePooling1D_even": lambda L, keras: model(keras, (12, 3), L.AdaptiveAveragePooling1D(4)),
    "AdaptiveAveragePooling1D_uneven": lambda L, keras: model(keras, (7, 3), L.AdaptiveAveragePooling1D(5)),
    "AdaptiveAveragePooling1D_first": lambda L, keras: model(
        keras, (3, 11), L.AdaptiveAveragePooling1D(4, data_format="channels_first")
    ),
    "AdaptiveAveragePooling2D_uneven": lambda L, keras: model(keras, (7, 10, 2), L.AdaptiveAveragePooling2D((3, 4))),
    "AdaptiveAveragePooling2D_one": lambda L, keras: model(keras, (7, 10, 2), L.AdaptiveAveragePooling2D(2)),
    "AdaptiveAveragePooling2D_first": lambda L, keras: model(
        keras, (2, 6, 9), L.AdaptiveAveragePooling2D((4, 3), data_format="channels_first")
    ),
    "AdaptiveAveragePooling3D_uneven": lambda L, keras: model(keras, (5, 4, 7, 2), L.AdaptiveAveragePooling3D((3, 2, 4))),
    "AdaptiveMaxPooling1D_even": lambda L, keras: model(keras, (12, 3), L.AdaptiveMaxPooling1D(4)),
    "AdaptiveMaxPooling1D_uneven": lambda L, keras: model(keras, (7, 3), L.AdaptiveMaxPooling1D(5)),
    "AdaptiveMaxPooling2D_uneven": lambda L, keras: model(keras, (7, 10, 2), L.AdaptiveMaxPooling2D((3, 4))),
    "AdaptiveMaxPooling2D_first": lambda L, keras: model(
        keras, (2, 6, 9), L.AdaptiveMaxPooling2D((4, 3), data_format="channels_first")
    ),
    "AdaptiveMaxPooling3D_uneven": lambda L, keras: model(keras, (5, 4, 7, 2), L.AdaptiveMaxPooling3D((3, 2, 4))),
    "MaxPooling1D_same_stride": lambda L, keras: model(keras, (8, 3), L.MaxPooling1D(3, strides=2, padding="same")),
    "AveragePooling2D_same_edges": lambda L, keras: model(keras, (5, 6, 2), L.AveragePooling2D((3, 2), strides=2, padding="same")),
    "AveragePooling3D_first": lambda L, keras: model(
        keras, (2, 4, 5, 6), L.AveragePooling3D(2, strides=(1, 2, 3), padding="same", data_format="channels_first")
    ),
    "MaxPooling3D_valid": lambda L, keras: model(keras, (4, 5, 6, 2), L.MaxPooling3D((2, 3, 1), strides=(2, 1, 4))),
    "GlobalAveragePooling3D_first_keep": lambda L, keras: model(
        keras, (2, 3, 4, 5), L.GlobalAveragePooling3D(data_format="channels_first", keepdims=True)
    ),
    "GlobalMaxPooling1D_first": lambda L, keras: model(keras, (3, 5), L.GlobalMaxPooling1D(data_format="channels_first")),
    "ZeroPadding1D_pair": lambda L, keras: model(keras, (5, 3), L.ZeroPadding1D((1, 3))),
    "ZeroPadding1D_one": lambda L, keras: model(keras, (5, 3), L.ZeroPadding1D(2)),
    "ZeroPadding2D_one": lambda L, keras: model(keras, (4, 5, 2), L.ZeroPadding2D(2)),
    "ZeroPadding2D_pair": lambda L, keras: model(keras, (4, 5, 2), L.ZeroPadding2D((1, 3))),
    "ZeroPadding2D_first": lambda L, keras: model(
        keras, (2, 4, 5), L.ZeroPadding2D(((1, 0), (2, 3)), data_format="channels_first")
    ),
    "ZeroPadding3D_pairs": lambda L, keras: model(keras, (2, 3, 4, 2), L.ZeroPadding3D(((1, 0), (2, 3), (0, 1)))),
    "ZeroPadding3D_triple": lambda L, keras: model(keras, (2, 3, 4, 2), L.ZeroPadding3D((1, 0, 2))),
    "Cropping2D_pair": lambda L, keras: model(keras, (6, 7, 2), L.Cropping2D((1, 2))),
    "Cropping1D_one": lambda L, keras: model(keras, (6, 3), L.Cropping1D(2)),
    "UpSampling1D_three": lambda L, keras: model(keras, (5, 3), L.UpSampling1D(3)),
    "UpSampling2D_bilinear": lambda L, keras: model(keras, (4, 5, 2), L.UpSampling2D((2, 3), interpolation="bilinear")),
    "UpSampling2D_bicubic": lambda L, keras: model(keras, (4, 5, 2), L.UpSampling2D((3, 2), interpolation="bicubic")),
    "UpSampling2D_lanczos3": lambda L, keras: model(keras, (4, 5, 2), L.UpSampling2D(2, interpolation="lanczos3")),
    "UpSampling2D_lanczos5": lambda L, keras: model(
        keras, (2, 4, 5), L.UpSampling2D((3, 2), interpolation="lanczos5", data_format="channels_first")
    ),
    "RepeatVector_three": lambda L, keras: model(keras, (4,), L.RepeatVector(3)),
    "Flatten_first": lambda L, keras: model(keras, (2, 3, 4), L.Flatten(data_format="channels_first"), L.Dense(3)),
    "Permute_four": lambda L, keras: model(keras, (2, 3, 4), L.Permute((3, 1, 2))),
    "Reshape_open": lambda L, keras: model(keras, (2, 3, 4), L.Reshape((-1, 6))),
}

LEGACY_CASES = {
    "UpSampling2D_gaussian": lambda L, keras: model(keras, (4, 5, 2), L.UpSampling2D(2, interpolation="gaussian")),
    "UpSampling2D_mitchellcubic": lambda L, keras: model(keras, (4, 5, 2), L.UpSampling2D(2, interpolation="mitchellcubic")),
    "MaxPooling1D_first": lambda L, keras: model(keras, (3, 8), L.MaxPooling1D(3, strides=2, data_format="channels_first")),
    "ZeroPadding2D_pair": lambda L, keras: model(keras, (4, 5, 2), L.ZeroPadding2D((1, 3))),
    "ZeroPadding1D_pair": lambda L, keras: model(keras, (5, 3), L.ZeroPadding1D((1, 3))),
    "Cropping3D_pairs": lambda L, keras: model(keras, (4, 5, 6, 2), L.Cropping3D(((1, 0), (2, 1), (0, 2)))),
    "GlobalAveragePooling2D_keep": lambda L, keras: model(keras, (4, 5, 2), L.GlobalAveragePooling2D(keepdims=True)),
}
