"""Convolutions: every option that Keras's own tests leave out."""


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


CASES = {
    "Conv1D_causal": lambda L, keras: model(keras, (9, 3), L.Conv1D(4, 3, padding="causal")),
    "Conv1D_causal_dilated": lambda L, keras: model(keras, (9, 3), L.Conv1D(4, 3, padding="causal", dilation_rate=2)),
    "Conv1D_causal_strided": lambda L, keras: model(keras, (9, 3), L.Conv1D(4, 3, padding="causal", strides=2)),
    "Conv1D_grouped": lambda L, keras: model(keras, (9, 6), L.Conv1D(4, 3, groups=2, activation="tanh")),
    "Conv2D_same_strides": lambda L, keras: model(keras, (8, 7, 3), L.Conv2D(4, (3, 4), strides=(2, 3), padding="same")),
    "Conv2D_dilated": lambda L, keras: model(keras, (8, 7, 3), L.Conv2D(4, (3, 2), dilation_rate=(2, 3), padding="same")),
    "Conv2D_no_bias": lambda L, keras: model(keras, (8, 7, 3), L.Conv2D(4, 3, use_bias=False, activation="relu")),
    "Conv2D_grouped": lambda L, keras: model(keras, (6, 7, 6), L.Conv2D(9, 3, groups=3)),
    "Conv2D_even": lambda L, keras: model(keras, (6, 7, 3), L.Conv2D(4, (4, 2), padding="same")),
    "Conv3D_same": lambda L, keras: model(keras, (4, 5, 6, 2), L.Conv3D(3, (3, 2, 3), strides=(1, 2, 2), padding="same")),
    "Conv3D_dilated": lambda L, keras: model(keras, (6, 5, 6, 2), L.Conv3D(3, 2, dilation_rate=(2, 1, 3))),
    "Conv3D_grouped": lambda L, keras: model(keras, (4, 5, 4, 4), L.Conv3D(6, 2, groups=2)),
    "Conv1DTranspose_padded": lambda L, keras: model(keras, (5, 3), L.Conv1DTranspose(4, 3, strides=2, output_padding=1)),
    "Conv1DTranspose_same": lambda L, keras: model(keras, (5, 3), L.Conv1DTranspose(4, 4, strides=3, padding="same")),
    "Conv1DTranspose_short": lambda L, keras: model(keras, (5, 3), L.Conv1DTranspose(4, 2, strides=3)),
    "Conv1DTranspose_dilated": lambda L, keras: model(keras, (5, 3), L.Conv1DTranspose(4, 3, dilation_rate=2)),
    "Conv2DTranspose_same": lambda L, keras: model(keras, (4, 5, 3), L.Conv2DTranspose(4, (3, 4), strides=2, padding="same")),
    "Conv2DTranspose_padded": lambda L, keras: model(
        keras, (4, 5, 3), L.Conv2DTranspose(4, 3, strides=(2, 3), padding="same", output_padding=(0, 2))
    ),
    "Conv2DTranspose_dilated": lambda L, keras: model(keras, (4, 5, 3), L.Conv2DTranspose(4, 3, dilation_rate=2, padding="same")),
    "Conv3DTranspose_same": lambda L, keras: model(keras, (3, 2, 3, 2), L.Conv3DTranspose(3, 3, strides=2, padding="same")),
    "Conv3DTranspose_padded": lambda L, keras: model(keras, (3, 2, 3, 2), L.Conv3DTranspose(3, 2, strides=2, output_padding=1)),
    "DepthwiseConv1D_multiplier": lambda L, keras: model(keras, (9, 3), L.DepthwiseConv1D(3, depth_multiplier=2, strides=2)),
    "DepthwiseConv2D_dilated": lambda L, keras: model(keras, (8, 9, 3), L.DepthwiseConv2D(3, dilation_rate=2, padding="same")),
    "DepthwiseConv2D_multiplier": lambda L, keras: model(
        keras, (6, 7, 3), L.DepthwiseConv2D((3, 2), depth_multiplier=3, use_bias=False)
    ),
    "SeparableConv1D_multiplier": lambda L, keras: model(keras, (9, 3), L.SeparableConv1D(4, 3, depth_multiplier=2)),
    "SeparableConv2D_strided": lambda L, keras: model(
        keras, (7, 8, 3), L.SeparableConv2D(4, 3, strides=2, padding="same", depth_multiplier=2, activation="relu")
    ),
    "SeparableConv2D_dilated": lambda L, keras: model(keras, (7, 8, 3), L.SeparableConv2D(4, 3, dilation_rate=2, padding="same")),
}

# Convolutions with the channels first, which TensorFlow computes on GPUs only, are in the table of Keras's own tests where it can.

LEGACY_CASES = {
    "Conv1D_causal": lambda L, keras: model(keras, (9, 3), L.Conv1D(4, 3, padding="causal", dilation_rate=2)),
    "Conv2D_grouped": lambda L, keras: model(keras, (6, 7, 6), L.Conv2D(9, 3, groups=3)),
    "Conv2DTranspose_padded": lambda L, keras: model(
        keras, (4, 5, 3), L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1)
    ),
    "Conv2DTranspose_valid": lambda L, keras: model(keras, (4, 5, 3), L.Conv2DTranspose(4, (2, 4), strides=3)),
    "DepthwiseConv2D_multiplier": lambda L, keras: model(keras, (6, 7, 3), L.DepthwiseConv2D((3, 2), depth_multiplier=3)),
    "DepthwiseConv1D_strided": lambda L, keras: model(keras, (9, 3), L.DepthwiseConv1D(3, strides=2, padding="same")),
    "SeparableConv1D_causal": lambda L, keras: model(keras, (9, 3), L.SeparableConv1D(4, 3, padding="causal")),
    "SeparableConv2D_dilated": lambda L, keras: model(keras, (7, 8, 3), L.SeparableConv2D(4, 3, dilation_rate=2)),
}
