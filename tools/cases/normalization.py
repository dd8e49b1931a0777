"""Normalisation beside that of batches."""


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


CASES = {
    "BatchNormalization_middle": lambda L, keras: model(keras, (4, 3, 5), L.BatchNormalization(axis=2)),
    "BatchNormalization_from_end": lambda L, keras: model(keras, (4, 3, 5), L.BatchNormalization(axis=-2)),
    "LayerNormalization_two_axes": lambda L, keras: model(keras, (4, 5), L.LayerNormalization(axis=[1, 2])),
    "LayerNormalization_first": lambda L, keras: model(keras, (4, 5), L.LayerNormalization(axis=1, scale=False)),
    "LayerNormalization_no_center": lambda L, keras: model(keras, (4, 5), L.LayerNormalization(center=False)),
    "GroupNormalization_instance": lambda L, keras: model(keras, (4, 5, 6), L.GroupNormalization(groups=-1)),
    "GroupNormalization_layer": lambda L, keras: model(keras, (4, 5, 6), L.GroupNormalization(groups=1)),
    "GroupNormalization_first": lambda L, keras: model(keras, (6, 4, 5), L.GroupNormalization(groups=3, axis=1)),
    "GroupNormalization_rank2": lambda L, keras: model(keras, (6,), L.GroupNormalization(groups=2)),
    "GroupNormalization_plain": lambda L, keras: model(keras, (4, 6), L.GroupNormalization(groups=2, center=False, scale=False)),
    "RMSNormalization_last": lambda L, keras: model(keras, (4, 6), L.RMSNormalization()),
    "RMSNormalization_two_axes": lambda L, keras: model(keras, (4, 6), L.RMSNormalization(axis=[1, 2])),
    "UnitNormalization_two_axes": lambda L, keras: model(keras, (4, 6), L.UnitNormalization(axis=(1, 2))),
    "UnitNormalization_first": lambda L, keras: model(keras, (4, 6), L.UnitNormalization(axis=1)),
}

LEGACY_CASES = {
    "BatchNormalization_middle": lambda L, keras: model(keras, (4, 3, 5), L.BatchNormalization(axis=2)),
    "LayerNormalization_two_axes": lambda L, keras: model(keras, (4, 5), L.LayerNormalization(axis=[1, 2])),
    "GroupNormalization_instance": lambda L, keras: model(keras, (4, 5, 6), L.GroupNormalization(groups=-1)),
    "UnitNormalization_last": lambda L, keras: model(keras, (4, 6), L.UnitNormalization()),
    "Normalization_axis": lambda L, keras: model(keras, (4, 6), L.Normalization(axis=-1)),
    "Normalization_mean": lambda L, keras: model(keras, (4, 3), L.Normalization(mean=[0.5, 1.0, -1.0], variance=[2.0, 0.0, 0.5])),
}
