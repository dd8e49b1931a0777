//! What Keras 1 stored for the variables of a layer, where that is not what its successors store.
//!
//! A file without a version is Keras 1's, since Keras 2 writes its own beside the names of the layers. Keras 1 did not write
//! which back end it ran on: its kernels are taken as they are applied. Where a file names Theano, whose convolutions turn
//! kernels round, they are turned.

use super::super::forms::{Form, Recipe, forms};
use super::super::hdf5::H5;
use super::super::weights::{Channels, VarTree};

/// How a file stores the gates of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gates {
    /// A tensor for each gate.
    Apart,
    /// Side by side in one tensor.
    Together,
}

/// Which layouts a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layouts {
    /// Those of Keras 2 and 3.
    Current,
    /// Those of Keras 1.
    First(Gates),
}

/// How kernels are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernels {
    /// As they are.
    Correlated,
    /// Turned round.
    Convolved,
}

/// Who wrote a file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frontend) struct Writer {
    layouts: Layouts,
    kernels: Kernels,
}

impl Writer {
    /// Keras 2 or 3 on a back end that correlates.
    pub(in crate::frontend) const CURRENT: Writer = Writer { layouts: Layouts::Current, kernels: Kernels::Correlated };

    /// Who may have written the layers below a group: what counts the same tensors is told apart by their shapes.
    pub(in crate::frontend) fn of(h5: &H5, group: &str) -> Vec<Writer> {
        let version = h5.string(group, "keras_version");
        let kernels = match h5.string(group, "backend").as_deref() {
            Some("theano") => Kernels::Convolved,
            Some(_) | None => Kernels::Correlated,
        };
        let layouts = match version.as_deref() {
            Some(v) if v != "1" && !v.starts_with("1.") && !v.starts_with("0.") => vec![Layouts::Current],
            Some(_) | None => vec![Layouts::First(Gates::Apart), Layouts::First(Gates::Together)],
        };
        layouts.into_iter().map(|layouts| Writer { layouts, kernels }).collect()
    }

    /// The forms of a layer's variables in the file.
    pub(in crate::frontend) fn forms(self, node: &VarTree) -> Vec<Form> {
        let old = match self.layouts {
            Layouts::Current => None,
            Layouts::First(gates) => gate_forms(node, gates).or_else(|| kernel_forms(node)),
        };
        let spatial = spatial(&node.class);
        match (old, self.kernels) {
            (Some(forms), Kernels::Convolved) => forms.into_iter().map(|form| turned(form, spatial)).collect(),
            (Some(forms), Kernels::Correlated) => forms,
            (None, Kernels::Convolved) if spatial > 0 => vec![turned(Form::plain(node.flatten().len()), spatial)],
            (None, Kernels::Convolved | Kernels::Correlated) if self.layouts == Layouts::Current => forms(node),
            (None, Kernels::Convolved | Kernels::Correlated) => Vec::new(),
        }
    }
}

/// Spatial dimensions of the kernels that Theano turns round.
fn spatial(class: &str) -> usize {
    match class {
        "Conv1D" => 1,
        "Conv2D" | "Conv2DTranspose" | "Deconvolution2D" | "ConvLSTM2D" => 2,
        "Conv3D" => 3,
        _ => 0,
    }
}

/// The same with kernels turned round.
fn turned(form: Form, spatial: usize) -> Form {
    if spatial == 0 {
        return form;
    }
    let kernels = form.recipes.len().saturating_sub(1).max(1);
    let turn = |(i, recipe): (usize, Recipe)| match i < kernels {
        true => recipe.flip((0..spatial).collect::<Vec<_>>()),
        false => recipe,
    };
    Form { recipes: form.recipes.into_iter().enumerate().map(turn).collect(), ..form }
}

/// Kernels of another layout; the tensors are as many as the variables.
fn kernel_forms(node: &VarTree) -> Option<Vec<Form>> {
    let count = node.flatten().len();
    let with = |kernels: Vec<Recipe>| {
        let rest = (kernels.len()..count).map(Recipe::Tensor);
        Form { tensors: count, recipes: kernels.into_iter().chain(rest).collect() }
    };
    let first = |axes: &[usize]| Recipe::Tensor(0).transpose(axes);
    Some(match (node.class.as_str(), node.channels) {
        // Two-dimensional with one column; before 1.1 with the filters in front.
        ("Conv1D", _) => {
            vec![with(vec![Recipe::Tensor(0).squeeze(1)]), with(vec![first(&[2, 3, 1, 0]).squeeze(1)])]
        }
        ("Conv2D", Channels::First) => vec![with(vec![first(&[2, 3, 1, 0])])],
        ("Conv3D", Channels::First) => vec![with(vec![first(&[2, 3, 4, 1, 0])])],
        ("Deconvolution2D" | "Conv2DTranspose", Channels::Last) => vec![with(vec![first(&[0, 1, 3, 2])])],
        ("Deconvolution2D" | "Conv2DTranspose", Channels::First) => vec![with(vec![first(&[2, 3, 0, 1])])],
        ("SeparableConv2D", Channels::First) => {
            vec![with(vec![first(&[2, 3, 1, 0]), Recipe::Tensor(1).transpose([2, 3, 1, 0])])]
        }
        // Up to 1.1 each kernel's bias stood behind it.
        ("Highway", _) if count == 4 => {
            let apart = [0, 2, 1, 3].map(Recipe::Tensor);
            vec![Form::plain(4), Form { tensors: 4, recipes: apart.to_vec() }]
        }
        _ => return None,
    })
}

/// The three tensors of each gate: input kernel, recurrent kernel, bias.
fn gate_forms(node: &VarTree, gates: Gates) -> Option<Vec<Form>> {
    let order: &[usize] = match (node.class.as_str(), gates) {
        // Stored as input gate, candidate, forget gate, output gate.
        ("LSTM" | "ConvLSTM2D", Gates::Apart) => &[0, 2, 1, 3],
        ("GRU", Gates::Apart) => &[0, 1, 2],
        ("LSTM" | "GRU" | "ConvLSTM2D", Gates::Together) => return Some(vec![Form::plain(node.flatten().len())]),
        _ => return None,
    };
    let images = node.class == "ConvLSTM2D";
    let axis = if images { 3 } else { 1 };
    let part = |gate: &usize, of: usize| {
        let tensor = Recipe::Tensor(3 * gate + of);
        match (of, images, node.channels) {
            (0 | 1, true, Channels::First) => tensor.transpose([2, 3, 1, 0]),
            _ => tensor,
        }
    };
    let joined = |of: usize, axis| Recipe::Join(axis, order.iter().map(|gate| part(gate, of)).collect());
    Some(vec![Form { tensors: 3 * order.len(), recipes: vec![joined(0, axis), joined(1, axis), joined(2, 0)] }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::{Array, DType};
    use crate::frontend::init::Initializer;
    use crate::frontend::weights::VarSpec;

    fn conv(channels: Channels) -> VarTree {
        let var = |path: &str, shape: &[usize]| VarSpec {
            path: path.to_string(),
            shape: shape.to_vec(),
            dtype: DType::F32,
            initializer: Initializer::ZEROS,
            trainable: true,
            regularizer: None,
            constraint: None,
        };
        let vars = vec![var("c/kernel", &[2, 2, 1, 2]), var("c/bias", &[2])];
        VarTree { channels, ..VarTree::leaf("Conv2D", "c", true, vars) }
    }

    fn made(writer: Writer, channels: Channels, shape: &[usize]) -> Vec<Vec<f64>> {
        let count = shape.iter().product::<usize>();
        let kernel = Array::from_f32(shape, &(0..count).map(|i| i as f32).collect::<Vec<_>>());
        let stored = [kernel, Array::from_f32([2], &[8.0, 9.0])];
        let node = conv(channels);
        let forms = writer.forms(&node);
        let plain = [Form::plain(2)];
        let form = if forms.is_empty() { &plain[0] } else { &forms[0] };
        form.recipes.iter().map(|recipe| recipe.make(&stored).expect("it fits").to_f64()).collect()
    }

    /// Values from NumPy: `np.arange(8)` in the stored shape, transposed by (2, 3, 1, 0), the first two axes reversed.
    #[test]
    fn kernels_are_turned_where_theano_turned_them() {
        let writer = |layouts, kernels| Writer { layouts, kernels };
        let bias = vec![8.0, 9.0];
        let current = made(writer(Layouts::Current, Kernels::Correlated), Channels::Last, &[2, 2, 1, 2]);
        assert_eq!(current, [vec![0., 1., 2., 3., 4., 5., 6., 7.], bias.clone()]);
        let turned = made(writer(Layouts::Current, Kernels::Convolved), Channels::First, &[2, 2, 1, 2]);
        assert_eq!(turned, [vec![6., 7., 4., 5., 2., 3., 0., 1.], bias.clone()]);
        let first = Layouts::First(Gates::Apart);
        let old = made(writer(first, Kernels::Correlated), Channels::First, &[2, 1, 2, 2]);
        assert_eq!(old, [vec![0., 4., 1., 5., 2., 6., 3., 7.], bias.clone()]);
        let old = made(writer(first, Kernels::Convolved), Channels::First, &[2, 1, 2, 2]);
        assert_eq!(old, [vec![3., 7., 2., 6., 1., 5., 0., 4.], bias]);
    }
}
