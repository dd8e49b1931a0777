"""Layers that keras.applications defines for itself."""


def from_module(module, name, shape, **config):
    def build(L, keras):
        from importlib import import_module

        layer = getattr(import_module(f"keras.src.applications.{module}"), name)(**config)
        return keras.Sequential([keras.Input(shape), L.Dense(4), layer])

    return build


def custom_scale(L, keras):
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    a, b = keras.Input((3, 2)), keras.Input((3, 2))
    return keras.Model([a, b], CustomScaleLayer(0.17)([a, b]))


CASES = {
    "CustomScaleLayer_two": custom_scale,
    "LayerScale_vector": from_module("convnext", "LayerScale", (3, 5), init_values=0.5, projection_dim=4),
    "StochasticDepth_inference": from_module("convnext", "StochasticDepth", (3, 5, 2), drop_path_rate=0.3),
}
