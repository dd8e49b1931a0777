"""Batch normalisation, and the experimental layers of tf-keras."""


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


CASES = {
    "BatchNormalization_rank2": lambda L, keras: model(keras, (7,), L.BatchNormalization(epsilon=0.01)),
    "BatchNormalization_image": lambda L, keras: model(keras, (5, 4, 3), L.BatchNormalization()),
    "BatchNormalization_axis_1": lambda L, keras: model(keras, (3, 5, 4), L.BatchNormalization(axis=1)),
    "BatchNormalization_no_scale": lambda L, keras: model(keras, (5, 6), L.BatchNormalization(scale=False)),
    "BatchNormalization_no_center": lambda L, keras: model(keras, (5, 6), L.BatchNormalization(center=False)),
    "BatchNormalization_frozen": lambda L, keras: model(keras, (5, 6), L.BatchNormalization(trainable=False), L.Dense(3)),
    "BatchNormalization_masked": lambda L, keras: model(keras, (5, 6), L.Masking(0.0), L.BatchNormalization(), L.LSTM(3)),
}

LEGACY_CASES = {
    "RandomFourierFeatures_scale": lambda L, keras: model(keras, (5,), L.experimental.RandomFourierFeatures(7, scale=1.5)),
    "RandomFourierFeatures_learned": lambda L, keras: model(keras, (5,), L.experimental.RandomFourierFeatures(7, trainable=True)),
    "BatchNormalization_rank2": lambda L, keras: model(keras, (7,), L.BatchNormalization(epsilon=0.01)),
    "BatchNormalization_image": lambda L, keras: model(keras, (5, 4, 3), L.BatchNormalization()),
    "BatchNormalization_axis_1": lambda L, keras: model(keras, (3, 5, 4), L.BatchNormalization(axis=1)),
    "BatchNormalization_renorm": lambda L, keras: model(keras, (5, 6), L.BatchNormalization(renorm=True)),
    "BatchNormalization_synchronized": lambda L, keras: model(keras, (5, 4, 3), L.BatchNormalization(synchronized=True)),
    "SyncBatchNormalization_image": lambda L, keras: model(keras, (5, 4, 3), L.experimental.SyncBatchNormalization()),
}
