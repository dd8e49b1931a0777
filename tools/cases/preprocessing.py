"""Preprocessing of numbers, images and sound, and augmentation as it is outside of training."""
import math


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


def image(keras, layer, shape=(6, 8, 3), **kw):
    return model(keras, shape, layer, **kw)


def ids(keras, shape, *layers, dtype="int64"):
    return model(keras, shape, *layers, dtype=dtype)


def weighted(L, keras):
    x, w = keras.Input((5,), dtype="int32", name="x"), keras.Input((5,), dtype="int32", name="w")
    return keras.Model([x, w], L.CategoryEncoding(num_tokens=4, output_mode="count")(x, count_weights=w))


def crossed(L, keras, count, **kw):
    inputs = [keras.Input((1,), dtype="int64", name=f"x{i}") for i in range(count)]
    return keras.Model(inputs, L.HashedCrossing(**kw)(inputs))



def of_all_lengths(rng):
    import numpy as np

    edges = [0, 1, -1, 9, 10, -10, 99, 100, -999, 1234, -1234, 9999999, -9999999, 12345678, -12345678, 2**62, -(2**62)]
    edges += [999999999999999, -999999999999999, 9999999999999999, -9999999999999999, 2**63 - 1, -(2**63), -(2**63) + 1]
    drawn = [int(rng.integers(-(10**k), 10**k)) for k in range(1, 19) for _ in range(4)]
    return np.array(edges + drawn, "int64").reshape(4, 24)


# A window by its numbers: names of windows need SciPy.
SINES = [round(math.sin(math.pi * (i + 0.5) / 16), 6) for i in range(16)]
LOOKUP = [12, 36, 1138, 42, -7, 100000, 3, 8]
MIXED = {"x": lambda rng: rng.choice([*LOOKUP, 0, -1, 5, 77, 2**40], (4, 6))}


def lookup(L, keras, shape=(6,), **kw):
    x = keras.Input(shape, dtype="int64", name="x")
    return keras.Model(x, L.IntegerLookup(vocabulary=kw.pop("vocabulary", LOOKUP), **kw)(x))


def hashed(L, keras, **kw):
    x = keras.Input((24,), dtype="int64", name="x")
    return keras.Model(x, L.Hashing(**kw)(x))


def uint8(rng, shape=(4, 6, 8, 3)):
    return rng.integers(0, 256, shape)


def pixels(L, keras, layer, shape=(6, 8, 3), dtype="float32"):
    x = keras.Input(shape, dtype=dtype, name="x")
    return keras.Model(x, layer(x))


def area(L, keras, height, width):
    """Of integers, since TensorFlow has no gradient of this one."""
    x = keras.Input((6, 8, 3), dtype="uint8", name="x")
    return keras.Model(x, L.Resizing(height, width, interpolation="area")(L.Rescaling(1 / 255)(x)))


CASES = {
    "CategoryEncoding_multi_hot": lambda L, keras: ids(keras, (3,), L.CategoryEncoding(4)),
    "CategoryEncoding_one_hot": lambda L, keras: ids(keras, (3,), L.CategoryEncoding(4, output_mode="one_hot")),
    "CategoryEncoding_one_hot_of_one": lambda L, keras: ids(keras, (1,), L.CategoryEncoding(4, output_mode="one_hot")),
    "CategoryEncoding_count": lambda L, keras: ids(keras, (5,), L.CategoryEncoding(4, output_mode="count")),
    "CategoryEncoding_weights": weighted,
    "CategoryEncoding_beyond": lambda L, keras: ids(keras, (3,), L.CategoryEncoding(4, output_mode="one_hot")),
    "Discretization_int": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 0.25, 1.0])),
    "Discretization_one_hot": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 1.0], output_mode="one_hot")),
    "Discretization_one_hot_of_one": lambda L, keras: model(keras, (1,), L.Discretization([-0.5, 0.5], output_mode="one_hot")),
    "Discretization_multi_hot": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 1.0], output_mode="multi_hot")),
    "Discretization_count": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 1.0], output_mode="count")),
    "Discretization_of_integers": lambda L, keras: model(keras, (5,), L.Discretization([1.5, 2.0, 5.0]), dtype="int32"),
    "IntegerLookup_int": lambda L, keras: lookup(L, keras),
    "IntegerLookup_mask": lambda L, keras: lookup(L, keras, mask_token=0),
    "IntegerLookup_specials": lambda L, keras: lookup(L, keras, mask_token=0, vocabulary=[0, -1, *LOOKUP]),
    "IntegerLookup_three_oov": lambda L, keras: lookup(L, keras, num_oov_indices=3, mask_token=0),
    "IntegerLookup_farmhash": lambda L, keras: lookup(L, keras, num_oov_indices=5, oov_method="farmhash"),
    "IntegerLookup_siphash": lambda L, keras: lookup(L, keras, num_oov_indices=5, oov_method="farmhash", salt=[3, 9]),
    "IntegerLookup_one_hot": lambda L, keras: lookup(L, keras, output_mode="one_hot"),
    "IntegerLookup_multi_hot": lambda L, keras: lookup(L, keras, output_mode="multi_hot", mask_token=0),
    "IntegerLookup_count": lambda L, keras: lookup(L, keras, output_mode="count", pad_to_max_tokens=True, max_tokens=15),
    "IntegerLookup_tf_idf": lambda L, keras: lookup(L, keras, output_mode="tf_idf", idf_weights=[0.1 * i + 0.2 for i in range(8)]),
    "IntegerLookup_tf_idf_padded": lambda L, keras: lookup(
        L, keras, output_mode="tf_idf", idf_weights=[0.1 * i + 0.2 for i in range(8)], pad_to_max_tokens=True, max_tokens=12
    ),
    "IntegerLookup_inverse": lambda L, keras: lookup(L, keras, invert=True),
    "IntegerLookup_inverse_mask": lambda L, keras: lookup(L, keras, invert=True, mask_token=0, oov_token=-5),
    "IntegerLookup_embedded": lambda L, keras: keras.Sequential(
        [keras.Input((6,), dtype="int64", name="x"), L.IntegerLookup(vocabulary=LOOKUP), L.Embedding(9, 3)]
    ),
    "Hashing_bins": lambda L, keras: hashed(L, keras, num_bins=1000),
    "Hashing_mask": lambda L, keras: hashed(L, keras, num_bins=7, mask_value=100),
    "Hashing_salt": lambda L, keras: hashed(L, keras, num_bins=1000, salt=133),
    "Hashing_salts": lambda L, keras: hashed(L, keras, num_bins=99991, salt=[123456789, 987654321]),
    "Hashing_one_hot": lambda L, keras: hashed(L, keras, num_bins=5, output_mode="one_hot"),
    "Hashing_count": lambda L, keras: hashed(L, keras, num_bins=5, output_mode="count"),
    "HashedCrossing_two": lambda L, keras: crossed(L, keras, 2, num_bins=100),
    "HashedCrossing_one_hot": lambda L, keras: crossed(L, keras, 2, num_bins=7, output_mode="one_hot"),
    "Normalization_axis_none": lambda L, keras: model(keras, (4, 3), L.Normalization(axis=None, mean=0.5, variance=2.0)),
    "Normalization_mean": lambda L, keras: model(keras, (4, 3), L.Normalization(mean=[0.5, 1.0, -1.0], variance=[2.0, 0.0, 0.5])),
    "Normalization_two_axes": lambda L, keras: model(keras, (4, 3), L.Normalization(axis=(1, 2))),
    "Normalization_two_axes_mean": lambda L, keras: model(
        keras, (2, 3), L.Normalization(axis=(1, 2), mean=[0.5, 1.0, -1.0], variance=[2.0, 1.0, 0.5])
    ),
    "Normalization_first_axis": lambda L, keras: model(keras, (4, 3), L.Normalization(axis=1)),
    "Normalization_inverse": lambda L, keras: model(keras, (4, 3), L.Normalization(invert=True)),
    "Rescaling_channels": lambda L, keras: image(keras, L.Rescaling([0.5, 2.0, -1.0], offset=[0.0, 1.0, 3.0])),
    "Rescaling_pixels": lambda L, keras: pixels(L, keras, L.Rescaling(1 / 127.5, offset=-1), dtype="uint8"),
    "CenterCrop_odd": lambda L, keras: image(keras, L.CenterCrop(3, 5)),
    "CenterCrop_wider": lambda L, keras: image(keras, L.CenterCrop(4, 12)),
    "CenterCrop_larger": lambda L, keras: image(keras, L.CenterCrop(9, 9)),
    "CenterCrop_first": lambda L, keras: image(keras, L.CenterCrop(7, 3, data_format="channels_first"), (3, 6, 8)),
    "Resizing_nearest": lambda L, keras: image(keras, L.Resizing(9, 5, interpolation="nearest")),
    "Resizing_bilinear": lambda L, keras: image(keras, L.Resizing(9, 5)),
    "Resizing_antialias": lambda L, keras: image(keras, L.Resizing(4, 3, antialias=True)),
    "Resizing_lanczos3": lambda L, keras: image(keras, L.Resizing(9, 5, interpolation="lanczos3")),
    "Resizing_lanczos5": lambda L, keras: image(keras, L.Resizing(4, 11, interpolation="lanczos5", antialias=True)),
    "Resizing_area": lambda L, keras: area(L, keras, 4, 5),
    "Resizing_area_up": lambda L, keras: area(L, keras, 9, 5),
    "Resizing_bicubic": lambda L, keras: image(keras, L.Resizing(9, 5, interpolation="bicubic", data_format="channels_first"), (3, 6, 8)),
    "Resizing_cropped": lambda L, keras: image(keras, L.Resizing(5, 3, crop_to_aspect_ratio=True)),
    "Resizing_padded": lambda L, keras: image(keras, L.Resizing(5, 4, pad_to_aspect_ratio=True, fill_value=2.5)),
    "Resizing_padded_odd": lambda L, keras: image(keras, L.Resizing(5, 9, pad_to_aspect_ratio=True, fill_value=-1.0), (7, 4, 2)),
    "Resizing_integers": lambda L, keras: pixels(L, keras, L.Resizing(9, 5, interpolation="bicubic"), dtype="uint8"),
    "Resizing_integers_nearest": lambda L, keras: pixels(L, keras, L.Resizing(9, 5, interpolation="nearest"), dtype="int32"),
    "AutoContrast_image": lambda L, keras: image(keras, L.AutoContrast(value_range=(0, 1))),
    "AutoContrast_bytes": lambda L, keras: pixels(L, keras, L.AutoContrast(), dtype="uint8"),
    "Pipeline_two": lambda L, keras: image(keras, L.Pipeline([L.Rescaling(0.5), L.RandomFlip(), L.Resizing(3, 4)])),
    "STFTSpectrogram_log": lambda L, keras: model(keras, (40, 2), L.STFTSpectrogram(frame_length=16, frame_step=5, window=SINES)),
    "STFTSpectrogram_magnitude": lambda L, keras: model(
        keras, (40, 2), L.STFTSpectrogram("magnitude", frame_length=12, fft_length=16, window=SINES[:12], padding="same")
    ),
    "STFTSpectrogram_psd": lambda L, keras: model(
        keras, (40, 1), L.STFTSpectrogram("psd", frame_length=16, window=SINES, scaling="spectrum", expand_dims=True)
    ),
    "STFTSpectrogram_real": lambda L, keras: model(keras, (40, 2), L.STFTSpectrogram("real", frame_length=16, window=None)),
    "STFTSpectrogram_imag": lambda L, keras: model(
        keras, (2, 40), L.STFTSpectrogram("imag", frame_length=16, window=SINES, scaling=None, data_format="channels_first")
    ),
    "STFTSpectrogram_angle": lambda L, keras: model(keras, (40, 1), L.STFTSpectrogram("angle", frame_length=16, window=SINES)),
    "STFTSpectrogram_stft": lambda L, keras: model(
        keras, (2, 40), L.STFTSpectrogram("stft", frame_length=16, window=SINES, expand_dims=True, data_format="channels_first")
    ),
    "MelSpectrogram_default": lambda L, keras: model(keras, (3000,), L.MelSpectrogram(num_mel_bins=20)),
    "MelSpectrogram_power": lambda L, keras: model(
        keras,
        (700,),
        L.MelSpectrogram(
            fft_length=256, sequence_stride=100, sequence_length=200, window="hamming", num_mel_bins=12, power_to_db=False, mag_exp=1.0
        ),
    ),
    "MelSpectrogram_db": lambda L, keras: model(
        keras,
        (700,),
        L.MelSpectrogram(fft_length=128, sequence_stride=64, num_mel_bins=8, min_freq=100, max_freq=6000, ref_power=2.0, top_db=30.0),
    ),
}

for name, args in {
    "AugMix": (),
    "CutMix": (),
    "MixUp": (),
    "RandAugment": (),
    "RandomBrightness": (0.2,),
    "RandomColorDegeneration": (0.1,),
    "RandomColorJitter": (),
    "RandomContrast": (0.2,),
    "RandomElasticTransform": (),
    "RandomErasing": (),
    "RandomFlip": (),
    "RandomGaussianBlur": (),
    "RandomGrayscale": (),
    "RandomHue": (0.1,),
    "RandomInvert": (),
    "RandomPerspective": (),
    "RandomPosterization": (4,),
    "RandomRotation": (0.1,),
    "RandomSaturation": (0.2,),
    "RandomSharpness": (0.2,),
    "RandomShear": (),
    "RandomTranslation": (0.1, 0.1),
    "RandomZoom": (0.1, 0.1),
    "MaxNumBoundingBoxes": (3,),
    "Solarization": (),
}.items():
    CASES[f"{name}_inference"] = lambda L, keras, name=name, args=args: image(keras, getattr(L, name)(*args))
    if name in ("RandomFlip", "RandomBrightness", "RandomRotation", "Solarization"):
        CASES[f"{name}_bytes"] = lambda L, keras, name=name, args=args: pixels(L, keras, getattr(L, name)(*args), dtype="uint8")

LEGACY_CASES = {
    "CategoryEncoding_multi_hot": lambda L, keras: ids(keras, (3,), L.CategoryEncoding(4)),
    "CategoryEncoding_count": lambda L, keras: ids(keras, (5,), L.CategoryEncoding(4, output_mode="count")),
    "Discretization_int": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 1.0])),
    "Discretization_count": lambda L, keras: model(keras, (5,), L.Discretization([-0.5, 0.0, 1.0], output_mode="count")),
    "IntegerLookup_int": lambda L, keras: lookup(L, keras, mask_token=0, num_oov_indices=2),
    "IntegerLookup_count": lambda L, keras: lookup(L, keras, output_mode="count"),
    "IntegerLookup_inverse": lambda L, keras: lookup(L, keras, invert=True),
    "Hashing_bins": lambda L, keras: hashed(L, keras, num_bins=1000),
    "Hashing_salt": lambda L, keras: hashed(L, keras, num_bins=1000, salt=133),
    "HashedCrossing_two": lambda L, keras: crossed(L, keras, 2, num_bins=100),
    "Rescaling_offset": lambda L, keras: image(keras, L.Rescaling(0.5, offset=-1)),
    "CenterCrop_odd": lambda L, keras: image(keras, L.CenterCrop(3, 5)),
    "CenterCrop_larger": lambda L, keras: image(keras, L.CenterCrop(9, 9)),
    "Resizing_gaussian": lambda L, keras: image(keras, L.Resizing(9, 5, interpolation="gaussian")),
    "Resizing_mitchellcubic": lambda L, keras: image(keras, L.Resizing(9, 5, interpolation="mitchellcubic")),
    "Resizing_area": lambda L, keras: area(L, keras, 4, 5),
    "Resizing_cropped": lambda L, keras: image(keras, L.Resizing(5, 3, crop_to_aspect_ratio=True)),
    "RandomCrop_inference": lambda L, keras: image(keras, L.RandomCrop(4, 3)),
    "RandomCrop_larger": lambda L, keras: image(keras, L.RandomCrop(9, 9)),
    "RandomFlip_inference": lambda L, keras: image(keras, L.RandomFlip()),
    "RandomRotation_inference": lambda L, keras: image(keras, L.RandomRotation(0.1)),
    "RandomZoom_inference": lambda L, keras: image(keras, L.RandomZoom(0.1)),
    "RandomTranslation_inference": lambda L, keras: image(keras, L.RandomTranslation(0.1, 0.1)),
    "RandomContrast_inference": lambda L, keras: image(keras, L.RandomContrast(0.1)),
    "RandomBrightness_inference": lambda L, keras: image(keras, L.RandomBrightness(0.1)),
    "RandomHeight_inference": lambda L, keras: image(keras, L.RandomHeight(0.1)),
    "RandomWidth_inference": lambda L, keras: image(keras, L.RandomWidth(0.1)),
}

INPUTS = {name: MIXED for name in {*CASES, *LEGACY_CASES} if name.startswith("IntegerLookup")}
INPUTS |= {name: {"x": lambda rng: rng.integers(-1, 11, (4, 6))} for name in INPUTS if "inverse" in name}
INPUTS |= {name: {"x": of_all_lengths} for name in {*CASES, *LEGACY_CASES} if name.startswith("Hashing")}
INPUTS |= {
    name: {f"x{i}": lambda rng: rng.integers(-(10**6), 10**6, (4, 1)) for i in range(2)}
    for name in ("HashedCrossing_two", "HashedCrossing_one_hot")
}
INPUTS |= {
    name: {"x": uint8}
    for name in {*CASES, *LEGACY_CASES}
    if "bytes" in name or "pixels" in name or "_area" in name or name.startswith("Resizing_integers")
}
