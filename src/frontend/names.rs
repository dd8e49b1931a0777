//! Names: what Keras makes of class names, and which known name is meant by an unknown one.

/// Keras's `to_snake_case`: `Conv2DTranspose` → `conv2d_transpose`, `ELU` → `elu`.
pub(super) fn snake_case(class: &str) -> String {
    // Keras first drops non-word characters, then applies two substitutions: `(.)([A-Z][a-z]+)` → `\1_\2` and
    // `([a-z])([A-Z])` → `\1_\2`.
    let chars: Vec<char> = class.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut first = Vec::with_capacity(chars.len() + 8);
    let mut i = 0;
    while i < chars.len() {
        let starts_word =
            i > 0 && chars[i].is_ascii_uppercase() && chars.get(i + 1).is_some_and(char::is_ascii_lowercase);
        if starts_word {
            first.push('_');
        }
        first.push(chars[i]);
        i += 1;
    }
    let mut out = String::with_capacity(first.len() + 8);
    for (i, &c) in first.iter().enumerate() {
        if i > 0 && c.is_ascii_uppercase() && first[i - 1].is_ascii_lowercase() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The candidate with the fewest edits from `name`, where that is no more than a third of its length.
pub(super) fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let limit = name.chars().count().div_ceil(3);
    let scored = candidates.into_iter().map(|c| (edits(&name.to_lowercase(), &c.to_lowercase()), c));
    scored.filter(|(n, _)| *n <= limit).min().map(|(_, c)| c)
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let next = (row[j + 1] + 1).min(row[j] + 1).min(diagonal + usize::from(ca != cb));
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from `keras.src.utils.naming.to_snake_case`.
    #[test]
    fn class_names_become_what_keras_makes_of_them() {
        for (class, snake) in SNAKES {
            assert_eq!(snake_case(class), snake);
        }
    }

    const SNAKES: [(&str, &str); 18] = [
        ("Conv2DTranspose", "conv2d_transpose"),
        ("ELU", "elu"),
        ("LeakyReLU", "leaky_re_lu"),
        ("PReLU", "p_re_lu"),
        ("ReLU", "re_lu"),
        ("LSTMCell", "lstm_cell"),
        ("ConvLSTM2D", "conv_lstm2d"),
        ("SimpleRNNCell", "simple_rnn_cell"),
        ("StackedRNNCells", "stacked_rnn_cells"),
        ("GlobalAveragePooling2D", "global_average_pooling2d"),
        ("UpSampling3D", "up_sampling3d"),
        ("TFSMLayer", "tfsm_layer"),
        ("TFOpLambda", "tf_op_lambda"),
        ("STFTSpectrogram", "stft_spectrogram"),
        ("AB12Cd", "ab12_cd"),
        ("_Abc", "__abc"),
        ("Foo>Bar", "foo_bar"),
        ("XAbAb", "x_ab_ab"),
    ];

    #[test]
    fn the_nearest_name_is_close() {
        assert_eq!(nearest("Conv2d", ["Dense", "Conv2D", "Conv1D"]), Some("Conv2D"));
        assert_eq!(nearest("kernal_size", ["kernel_size", "units"]), Some("kernel_size"));
        assert_eq!(nearest("MyOwnThing", ["Dense", "Conv2D"]), None);
    }
}
