"""Recurrent layers, their cells and wrappers: options, masks, states, and both generations."""


def sequence(keras, shape=(5, 3), **kwargs):
    return keras.Input(shape, **kwargs)


def flat(*results):
    """The tensors of a call's results, which may be nested lists."""
    found = []
    for result in results:
        found += flat(*result) if isinstance(result, (list, tuple)) else [result]
    return found


def one(make, shape=(5, 3)):
    """A model of one layer on one sequence, with all that it returns."""

    def build(L, keras):
        x = sequence(keras, shape)
        return keras.Model(x, flat(make(L)(x)))

    return build


def masked(make, shape=(5, 3)):
    """The same behind a Masking layer."""

    def build(L, keras):
        x = sequence(keras, shape)
        return keras.Model(x, flat(make(L)(L.Masking()(x))))

    return build


def embedded(make):
    """The same behind an Embedding that masks zeros."""

    def build(L, keras):
        x = keras.Input((6,), dtype="int32")
        return keras.Model(x, flat(make(L)(L.Embedding(7, 3, mask_zero=True)(x))))

    return build


def explicit(make):
    """The same with the mask as an input of its own."""

    def build(L, keras):
        x, mask = sequence(keras), keras.Input((5,), dtype="bool")
        return keras.Model([x, mask], flat(make(L)(x, mask=mask)))

    return build


def begun(make, *units, mask=False):
    """The same with the initial states as inputs."""

    def build(L, keras):
        x, states = sequence(keras), [keras.Input((u,)) for u in units]
        inner = L.Masking()(x) if mask else x
        return keras.Model([x, *states], flat(make(L)(inner, initial_state=states)))

    return build


def rnn(*cells, **options):
    return lambda L: L.RNN([cell(L) for cell in cells] if len(cells) > 1 else cells[0](L), **options)


def mixed_stack(L, keras):
    """Cells of all kinds on top of each other, their states coming and going as lists in a list."""
    x = sequence(keras)
    cells = [L.LSTMCell(4), L.GRUCell(3), L.SimpleRNNCell(2), L.GRUCell(4, reset_after=False)]
    h, c, g, s, r = (keras.Input((u,)) for u in (4, 4, 3, 2, 4))
    layer = L.RNN(L.StackedRNNCells(cells), return_state=True, return_sequences=True)
    return keras.Model([x, h, c, g, s, r], flat(layer(x, initial_state=[[h, c], g, s, r])))


def lstm_cell(L, keras):
    x, h, c = keras.Input((3,)), keras.Input((4,)), keras.Input((4,))
    return keras.Model([x, h, c], flat(L.LSTMCell(4)(x, [h, c])))


def gru_cell(L, keras):
    x, h = keras.Input((3,)), keras.Input((4,))
    return keras.Model([x, h], flat(L.GRUCell(4)(x, [h])))


def simple_cell(L, keras):
    x, h = keras.Input((3,)), keras.Input((4,))
    return keras.Model([x, h], flat(L.SimpleRNNCell(4)(x, [h])))


def stacked_cells(L, keras):
    x, h, c, g = keras.Input((3,)), keras.Input((4,)), keras.Input((4,)), keras.Input((2,))
    return keras.Model([x, h, c, g], flat(L.StackedRNNCells([L.LSTMCell(4), L.GRUCell(2)])(x, [[h, c], [g]])))


def shared(L, keras):
    """One layer called twice, the second time where the first has left off."""
    x, layer = sequence(keras), L.LSTM(4, return_state=True)
    _, *states = layer(x)
    return keras.Model(x, flat(layer(x, initial_state=states)))


def encoder_decoder(L, keras):
    x, y = sequence(keras), sequence(keras, (4, 3))
    _, h, c = L.LSTM(4, return_state=True)(x)
    out, *_ = L.LSTM(4, return_sequences=True, return_state=True)(y, initial_state=[h, c])
    return keras.Model([x, y], L.Dense(2)(out))


def per_step_model(L, keras):
    inner = keras.Sequential([keras.Input((6, 6, 2)), L.Conv2D(3, 3), L.MaxPooling2D(), L.Flatten(), L.Dense(4, activation="tanh")])
    x = keras.Input((3, 6, 6, 2))
    return keras.Model(x, L.LSTM(4)(L.TimeDistributed(inner)(x)))


def per_step_graph(L, keras):
    a = keras.Input((4,))
    inner = keras.Model(a, L.Add()([L.Dense(4)(a), a]))
    x = keras.Input((3, 4))
    return keras.Model(x, L.TimeDistributed(inner)(x))


def per_step_masks(L, keras):
    """The mask of words within sentences goes to the inner layer, sentence by sentence."""
    x = keras.Input((3, 4, 2))
    y = L.TimeDistributed(L.LSTM(3, return_sequences=True))(L.Masking()(x))
    return keras.Model(x, L.TimeDistributed(L.Dense(2))(y))


def per_step_explicit(L, keras):
    x, mask = keras.Input((3, 4, 2)), keras.Input((3, 4), dtype="bool")
    return keras.Model([x, mask], L.TimeDistributed(L.GRU(3))(x, mask=mask))


def words(L, keras):
    """Words of sentences of documents: of both generations each has rules of its own."""
    x = keras.Input((3, 4), dtype="int32")
    y = L.TimeDistributed(L.Embedding(5, 3, mask_zero=True))(x)
    y = L.TimeDistributed(L.Bidirectional(L.GRU(2)))(y)
    return keras.Model(x, L.LSTM(3)(y))


def spectral_masks(L, keras):
    x = sequence(keras)
    return keras.Model(x, L.LSTM(3)(L.SpectralNormalization(L.Dense(4))(L.Masking()(x))))


CASES, LEGACY_CASES = {}, {}


def both(name, build):
    CASES[name] = LEGACY_CASES[name] = build


KINDS = {"SimpleRNN": (1, {}), "GRU": (1, {}), "LSTM": (2, {})}
for kind, (states, _) in KINDS.items():
    layer = lambda kind=kind, **options: lambda L: getattr(L, kind)(4, **options)
    both(f"{kind}_last", one(layer()))
    both(f"{kind}_sequences_state", one(layer(return_sequences=True, return_state=True)))
    both(f"{kind}_backwards", one(layer(return_sequences=True, return_state=True, go_backwards=True)))
    both(f"{kind}_no_bias_unrolled", one(layer(use_bias=False, unroll=True)))
    both(f"{kind}_masked", masked(layer(return_state=True)))
    both(f"{kind}_masked_sequences", masked(layer(return_sequences=True, return_state=True)))
    both(f"{kind}_masked_backwards", masked(layer(return_sequences=True, return_state=True, go_backwards=True)))
    both(f"{kind}_masked_embedding", embedded(layer(return_sequences=True)))
    both(f"{kind}_masked_explicit", explicit(layer(return_sequences=True)))
    both(f"{kind}_masked_stack", masked(lambda L, kind=kind: Chain(getattr(L, kind)(4, return_sequences=True), getattr(L, kind)(3))))
    both(f"{kind}_begun", begun(layer(return_sequences=True, return_state=True), *[4] * states))
    both(f"{kind}_begun_masked", begun(layer(return_sequences=True, return_state=True), *[4] * states, mask=True))
    both(f"{kind}_begun_masked_last", begun(layer(return_state=True), *[4] * states, mask=True))
    CASES[f"{kind}_masked_zeros"] = masked(layer(return_sequences=True, return_state=True, zero_output_for_mask=True))
    CASES[f"{kind}_masked_zeros_last"] = masked(layer(return_state=True, zero_output_for_mask=True))
    CASES[f"{kind}_dropout"] = one(layer(dropout=0.3, recurrent_dropout=0.2, return_sequences=True))


class Chain:
    """Layers one after the other."""

    def __init__(self, *layers):
        self.layers = layers

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


for name in ("relu", "hard_sigmoid", "elu", "selu", "softplus", "softsign", "gelu", "linear"):
    scale = {"kernel_initializer": "glorot_uniform"}
    both(f"LSTM_activation_{name}", one(lambda L, name=name: L.LSTM(3, activation=name, recurrent_activation="hard_sigmoid", **scale)))
    both(f"GRU_gates_{name}", one(lambda L, name=name: L.GRU(3, recurrent_activation=name, activation="tanh", return_sequences=True)))
both("GRU_reset_before", one(lambda L: L.GRU(4, reset_after=False, return_sequences=True)))
both("GRU_reset_before_no_bias", one(lambda L: L.GRU(4, reset_after=False, use_bias=False)))
both("GRU_reset_before_masked", masked(lambda L: L.GRU(4, reset_after=False, return_sequences=True)))
both("LSTM_no_forget_bias", one(lambda L: L.LSTM(4, unit_forget_bias=False)))
both("LSTM_shared", shared)
both("LSTM_encoder_decoder", encoder_decoder)

both("RNN_lstm_cell", one(rnn(lambda L: L.LSTMCell(4), return_sequences=True, return_state=True)))
both("RNN_gru_cell", one(rnn(lambda L: L.GRUCell(4, reset_after=False), return_sequences=True, return_state=True)))
both("RNN_simple_cell", masked(rnn(lambda L: L.SimpleRNNCell(4), go_backwards=True, return_sequences=True)))
both("RNN_cells", one(rnn(lambda L: L.LSTMCell(4), lambda L: L.LSTMCell(3), return_sequences=True)))
both("RNN_cells_masked", masked(rnn(lambda L: L.GRUCell(4), lambda L: L.LSTMCell(3), return_sequences=True)))
both("StackedRNNCells_mixed", mixed_stack)
both("StackedRNNCells_last", one(lambda L: L.RNN(L.StackedRNNCells([L.GRUCell(3), L.SimpleRNNCell(4)]))))
both("LSTMCell_layer", lstm_cell)
both("GRUCell_layer", gru_cell)
both("SimpleRNNCell_layer", simple_cell)
CASES["StackedRNNCells_layer"] = stacked_cells

IMAGES = {1: (3, 6, 2), 2: (3, 5, 6, 2), 3: (2, 4, 4, 4, 2)}
for n, shape in IMAGES.items():
    conv = lambda n=n, **options: lambda L: getattr(L, f"ConvLSTM{n}D")(2, 3, **options)
    both(f"ConvLSTM{n}D_last", one(conv(), shape))
    both(f"ConvLSTM{n}D_sequences_state", one(conv(padding="same", return_sequences=True, return_state=True), shape))
    both(f"ConvLSTM{n}D_strided", one(conv(padding="same", strides=2, return_sequences=True, use_bias=False), shape))
    both(f"ConvLSTM{n}D_dilated_backwards", one(conv(padding="same", dilation_rate=2, go_backwards=True, return_sequences=True), shape))
    both(f"ConvLSTM{n}D_gates", one(conv(activation="relu", recurrent_activation="hard_sigmoid", padding="same"), shape))


def conv_explicit(L, keras):
    x, mask = keras.Input((4, 5, 5, 2)), keras.Input((4,), dtype="bool")
    layer = L.ConvLSTM2D(2, 3, padding="same", return_sequences=True, return_state=True)
    return keras.Model([x, mask], flat(layer(x, mask=mask)))


def conv_explicit_last(L, keras):
    x, mask = keras.Input((4, 5, 2)), keras.Input((4,), dtype="bool")
    return keras.Model([x, mask], flat(L.ConvLSTM1D(2, 3, return_state=True)(x, mask=mask)))


def conv_begun(L, keras):
    x, h, c = keras.Input((3, 5, 5, 2)), keras.Input((5, 5, 2)), keras.Input((5, 5, 2))
    layer = L.ConvLSTM2D(2, 3, padding="same", return_sequences=True)
    return keras.Model([x, h, c], layer(x, initial_state=[h, c]))


both("ConvLSTM2D_masked", conv_explicit)
both("ConvLSTM1D_masked_last", conv_explicit_last)
both("ConvLSTM2D_begun", conv_begun)
CASES["ConvLSTM2D_bidirectional"] = one(
    lambda L: L.Bidirectional(L.ConvLSTM2D(2, 3, padding="same", return_sequences=True)), IMAGES[2]
)

for merge in ("concat", "sum", "mul", "ave", None):
    for sequences in (False, True):
        tail = f"{merge or 'none'}{'_sequences' if sequences else ''}".lower()
        layer = lambda L, merge=merge, sequences=sequences: L.Bidirectional(
            L.LSTM(3, return_sequences=sequences), merge_mode=merge
        )
        both(f"Bidirectional_{tail}", one(layer))
        both(f"Bidirectional_{tail}_masked", masked(layer))
both("Bidirectional_state", masked(lambda L: L.Bidirectional(L.LSTM(3, return_sequences=True, return_state=True))))
both("Bidirectional_state_none", one(lambda L: L.Bidirectional(L.GRU(3, return_state=True), merge_mode=None)))
both("Bidirectional_begun", begun(lambda L: L.Bidirectional(L.LSTM(4, return_sequences=True)), 4, 4, 4, 4))
both("Bidirectional_begun_masked", begun(lambda L: L.Bidirectional(L.GRU(4, return_sequences=True)), 4, 4, mask=True))
both("Bidirectional_explicit", explicit(lambda L: L.Bidirectional(L.SimpleRNN(4, return_sequences=True))))
both(
    "Bidirectional_own_backward",
    masked(
        lambda L: L.Bidirectional(
            L.LSTM(3, return_sequences=True), backward_layer=L.GRU(5, go_backwards=True, return_sequences=True, activation="relu")
        )
    ),
)
both("Bidirectional_rnn", one(lambda L: L.Bidirectional(L.RNN(L.GRUCell(3), return_sequences=True))))
both("Bidirectional_cells", one(lambda L: L.Bidirectional(L.RNN([L.LSTMCell(3), L.LSTMCell(2)], return_sequences=True), merge_mode="sum")))
both("Bidirectional_stacked", masked(lambda L: Chain(L.Bidirectional(L.GRU(3, return_sequences=True)), L.Bidirectional(L.LSTM(2)))))

both("TimeDistributed_dense", masked(lambda L: Chain(L.TimeDistributed(L.Dense(4)), L.GRU(3))))
both("TimeDistributed_conv", one(lambda L: L.TimeDistributed(L.Conv2D(3, 3, activation="relu")), (3, 5, 5, 2)))
both("TimeDistributed_pool_flatten", one(lambda L: Chain(L.TimeDistributed(L.MaxPooling1D()), L.TimeDistributed(L.Flatten())), (3, 4, 2)))
both("TimeDistributed_normalization", one(lambda L: L.TimeDistributed(L.BatchNormalization()), (3, 4, 2)))
both("TimeDistributed_nested", one(lambda L: L.TimeDistributed(L.TimeDistributed(L.Dense(4))), (3, 4, 2)))
both("TimeDistributed_bidirectional", one(lambda L: L.TimeDistributed(L.Bidirectional(L.LSTM(3))), (3, 4, 2)))
both("TimeDistributed_model", per_step_model)
both("TimeDistributed_graph", per_step_graph)
both("TimeDistributed_masked", per_step_masks)
both("TimeDistributed_explicit", per_step_explicit)
both("TimeDistributed_words", words)

for name, shape, make in (
    ("dense", (4,), lambda L: L.Dense(3)),
    ("conv", (5, 5, 2), lambda L: L.Conv2D(3, 3)),
    ("transposed", (4, 2), lambda L: L.Conv1DTranspose(3, 3)),
    ("einsum", (5, 3), lambda L: L.EinsumDense("abc,cd->abd", output_shape=(None, 4))),
):
    build = one(lambda L, make=make: L.SpectralNormalization(make(L), power_iterations=2), shape)
    CASES[f"SpectralNormalization_{name}"] = build
CASES["SpectralNormalization_masked"] = spectral_masks
