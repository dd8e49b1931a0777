//! Layers whose stored tensors are not their variables one by one.
//!
//! A [`Form`] says how many tensors Keras stored for all variables of a layer and what to make of them: kernels of other
//! layouts, gates stored apart, the layouts of cuDNN. A layer may have several forms of one count of tensors; the first whose results
//! have the variables' shapes is taken.

use crate::arrays::Array;

use super::weights::VarTree;

/// What to make of a layer's stored tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// The tensor of this position among those stored for the layer.
    Tensor(usize),
    /// Dimension `i` of the result is this dimension of the other.
    Transpose(Vec<usize>, Box<Recipe>),
    /// Turned round along these dimensions.
    Flip(Vec<usize>, Box<Recipe>),
    /// The same elements in row-major order under other extents.
    Reshape(Vec<usize>, Box<Recipe>),
    /// Without this dimension, whose extent is 1.
    Squeeze(usize, Box<Recipe>),
    /// The part `start..end` along a dimension.
    Slice {
        /// The dimension.
        axis: usize,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Of what.
        of: Box<Recipe>,
    },
    /// One after another along a dimension.
    Join(usize, Vec<Recipe>),
    /// Added up.
    Sum(Vec<Recipe>),
}

/// How Keras stored all variables of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// How many tensors it stored.
    pub tensors: usize,
    /// What each variable is made of, in the order of [`VarTree::flatten`].
    pub recipes: Vec<Recipe>,
}

impl Form {
    /// Every variable is a tensor.
    pub fn plain(variables: usize) -> Form {
        Form { tensors: variables, recipes: (0..variables).map(Recipe::Tensor).collect() }
    }

    /// Whether tensors of these shapes become variables of those.
    pub(super) fn fits(&self, stored: &[Vec<usize>], wanted: &[&[usize]]) -> bool {
        let made = |(recipe, wanted): (&Recipe, &&[usize])| recipe.shape(stored).is_some_and(|made| made == **wanted);
        self.recipes.len() == wanted.len() && self.recipes.iter().zip(wanted).all(made)
    }
}

impl Recipe {
    /// A transposition.
    pub fn transpose(self, axes: impl Into<Vec<usize>>) -> Recipe {
        Recipe::Transpose(axes.into(), Box::new(self))
    }

    /// Turned round along these dimensions.
    pub fn flip(self, axes: impl Into<Vec<usize>>) -> Recipe {
        Recipe::Flip(axes.into(), Box::new(self))
    }

    /// Under other extents.
    pub fn reshape(self, shape: impl Into<Vec<usize>>) -> Recipe {
        Recipe::Reshape(shape.into(), Box::new(self))
    }

    /// Without a dimension of extent 1.
    pub fn squeeze(self, axis: usize) -> Recipe {
        Recipe::Squeeze(axis, Box::new(self))
    }

    /// A part along a dimension.
    pub fn slice(self, axis: usize, start: usize, end: usize) -> Recipe {
        Recipe::Slice { axis, start, end, of: Box::new(self) }
    }

    /// Whether the tensor of this position is part of it.
    pub(super) fn takes(&self, tensor: usize) -> bool {
        match self {
            Recipe::Tensor(i) => *i == tensor,
            Recipe::Transpose(_, of)
            | Recipe::Flip(_, of)
            | Recipe::Reshape(_, of)
            | Recipe::Squeeze(_, of)
            | Recipe::Slice { of, .. } => of.takes(tensor),
            Recipe::Join(_, parts) | Recipe::Sum(parts) => parts.iter().any(|part| part.takes(tensor)),
        }
    }

    /// The shape of what is made of tensors of these shapes; `None` where that is not possible.
    pub(super) fn shape(&self, stored: &[Vec<usize>]) -> Option<Vec<usize>> {
        Some(match self {
            Recipe::Tensor(i) => stored.get(*i)?.clone(),
            Recipe::Transpose(axes, of) => {
                let shape = of.shape(stored)?;
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..shape.len()) {
                    return None;
                }
                axes.iter().map(|&a| shape[a]).collect()
            }
            Recipe::Flip(axes, of) => of.shape(stored).filter(|shape| axes.iter().all(|&a| a < shape.len()))?,
            Recipe::Reshape(shape, of) => {
                let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
                (elements(&of.shape(stored)?)? == elements(shape)?).then(|| shape.clone())?
            }
            Recipe::Squeeze(axis, of) => {
                let mut shape = of.shape(stored)?;
                (shape.get(*axis) == Some(&1)).then(|| shape.remove(*axis))?;
                shape
            }
            Recipe::Slice { axis, start, end, of } => {
                let mut shape = of.shape(stored)?;
                let extent = shape.get_mut(*axis).filter(|extent| start <= end && *end <= **extent)?;
                *extent = end - start;
                shape
            }
            Recipe::Join(axis, parts) => {
                let mut shapes = parts.iter().map(|part| part.shape(stored));
                let mut whole = shapes.next()??;
                for shape in shapes {
                    let shape = shape?;
                    let fits = |(d, (a, b)): (usize, (&usize, &usize))| d == *axis || a == b;
                    if shape.len() != whole.len() || !whole.iter().zip(&shape).enumerate().all(fits) {
                        return None;
                    }
                    let extent = whole.get_mut(*axis)?;
                    *extent = extent.checked_add(shape[*axis])?;
                }
                whole
            }
            Recipe::Sum(parts) => {
                let mut shapes = parts.iter().map(|part| part.shape(stored));
                let first = shapes.next()??;
                shapes.all(|shape| shape.as_ref() == Some(&first)).then_some(first)?
            }
        })
    }

    /// Makes it of the layer's tensors. `None` where [`Recipe::shape`] has none, and where tensors of several types meet.
    pub(super) fn make(&self, stored: &[Array]) -> Option<Array> {
        let shapes: Vec<Vec<usize>> = stored.iter().map(|array| array.shape().to_vec()).collect();
        self.shape(&shapes)?;
        self.made(stored)
    }

    fn made(&self, stored: &[Array]) -> Option<Array> {
        match self {
            Recipe::Tensor(i) => stored.get(*i).cloned(),
            Recipe::Transpose(axes, of) => {
                let of = of.made(stored)?;
                let shape: Vec<usize> = axes.iter().map(|&a| of.shape()[a]).collect();
                let strides = strides(of.shape());
                let from: Vec<isize> = axes.iter().map(|&a| strides[a]).collect();
                gather(&of, shape, &from, 0)
            }
            Recipe::Flip(axes, of) => {
                let of = of.made(stored)?;
                let mut from = strides(of.shape());
                let mut first = 0;
                for &axis in axes.iter().filter(|&&axis| of.shape()[axis] > 0) {
                    first += from[axis] * (of.shape()[axis] as isize - 1);
                    from[axis] = -from[axis];
                }
                gather(&of, of.shape().to_vec(), &from, first)
            }
            Recipe::Reshape(shape, of) => {
                let of = of.made(stored)?;
                Array::from_bytes(of.dtype(), shape.clone(), of.bytes())
            }
            Recipe::Squeeze(axis, of) => {
                let of = of.made(stored)?;
                let mut shape = of.shape().to_vec();
                shape.remove(*axis);
                Array::from_bytes(of.dtype(), shape, of.bytes())
            }
            Recipe::Slice { axis, start, end, of } => {
                let of = of.made(stored)?;
                let mut shape = of.shape().to_vec();
                shape[*axis] = end - start;
                let from = strides(of.shape());
                let first = from[*axis] * *start as isize;
                gather(&of, shape, &from, first)
            }
            Recipe::Join(axis, parts) => {
                let parts = parts.iter().map(|part| part.made(stored)).collect::<Option<Vec<_>>>()?;
                join(*axis, &parts)
            }
            Recipe::Sum(parts) => {
                let parts = parts.iter().map(|part| part.made(stored)).collect::<Option<Vec<_>>>()?;
                let first = parts.first()?;
                let mut sum = first.to_f64();
                for part in &parts[1..] {
                    sum.iter_mut().zip(part.to_f64()).for_each(|(sum, x)| *sum += x);
                }
                Some(Array::from_f64(first.shape().to_vec(), &sum).cast(first.dtype()))
            }
        }
    }
}

/// Elements from one index to the next, per dimension.
fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d] as isize;
    }
    strides
}

/// The array of this shape whose element at `index` is the one at `first + Σ indexᵈ·fromᵈ` of the other.
fn gather(of: &Array, shape: Vec<usize>, from: &[isize], first: isize) -> Option<Array> {
    let size = of.dtype().size();
    let mut out = Array::zeros(of.dtype(), shape.clone())?;
    let mut index = vec![0usize; shape.len()];
    let mut at = first;
    for element in out.bytes_mut().chunks_exact_mut(size) {
        element.copy_from_slice(of.bytes().get(at as usize * size..)?.get(..size)?);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            at += from[d];
            if index[d] < shape[d] {
                break;
            }
            at -= from[d] * shape[d] as isize;
            index[d] = 0;
        }
    }
    Some(out)
}

fn join(axis: usize, parts: &[Array]) -> Option<Array> {
    let first = parts.first()?;
    if parts.iter().any(|part| part.dtype() != first.dtype()) {
        return None;
    }
    let mut shape = first.shape().to_vec();
    shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let row = |part: &Array| part.shape()[axis..].iter().product::<usize>() * part.dtype().size();
    let mut bytes = Vec::new();
    for i in 0..outer {
        for part in parts {
            bytes.extend_from_slice(&part.bytes()[i * row(part)..(i + 1) * row(part)]);
        }
    }
    Array::from_bytes(first.dtype(), shape, &bytes)
}

/// What the variables of a layer's class are known to have been stored as, where that is not one tensor each.
pub(super) fn forms(node: &VarTree) -> Vec<Form> {
    let [kernel, recurrent, bias] = &node.vars[..] else { return Vec::new() };
    let names = [kernel, recurrent, bias].map(|var| var.path.rsplit('/').next().unwrap_or_default());
    let ([inputs, columns], true) = (&kernel.shape[..], names == ["kernel", "recurrent_kernel", "bias"]) else {
        return Vec::new();
    };
    let cell = |name: &str| node.class == format!("{name}Cell") || node.class.trim_start_matches("CuDNN") == name;
    let cudnn = if cell("LSTM") && bias.shape == [*columns] {
        let halves = [0, *columns].map(|start| Recipe::Tensor(2).slice(0, start, start + columns));
        cudnn(*inputs, *columns, 4, Recipe::Sum(halves.to_vec()))
    } else if cell("GRU") && bias.shape == [2, *columns] {
        cudnn(*inputs, *columns, 3, Recipe::Tensor(2).reshape([2, *columns]))
    } else {
        return Vec::new();
    };
    vec![Form::plain(3), cudnn]
}

/// cuDNN keeps each gate's kernels transposed, the input kernel's elements under the extents of the other layout, and a
/// bias for either kernel.
fn cudnn(inputs: usize, columns: usize, gates: usize, bias: Recipe) -> Form {
    let units = columns / gates;
    let gate = |tensor: usize, g: usize| Recipe::Tensor(tensor).slice(1, g * units, (g + 1) * units);
    let kernel = (0..gates).map(|g| gate(0, g).reshape([units, inputs]).transpose([1, 0])).collect();
    let recurrent = (0..gates).map(|g| gate(1, g).transpose([1, 0])).collect();
    Form { tensors: 3, recipes: vec![Recipe::Join(1, kernel), Recipe::Join(1, recurrent), bias] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::DType;

    fn numbers(shape: &[usize]) -> Array {
        let count = shape.iter().product::<usize>();
        Array::from_f32(shape, &(0..count).map(|i| i as f32).collect::<Vec<_>>())
    }

    fn values(recipe: &Recipe, stored: &[Array]) -> (Vec<usize>, Vec<f64>) {
        let made = recipe.make(stored).expect("the recipe fits");
        (made.shape().to_vec(), made.to_f64())
    }

    /// Values from NumPy: `np.arange(6).reshape(2, 3)` transposed, turned round, cut, joined and added.
    #[test]
    fn recipes_make_what_numpy_makes() {
        let stored = [numbers(&[2, 3]), numbers(&[2, 1])];
        let a = || Recipe::Tensor(0);
        let cases = [
            (a().transpose([1, 0]), vec![3, 2], vec![0., 3., 1., 4., 2., 5.]),
            (a().flip([0, 1]), vec![2, 3], vec![5., 4., 3., 2., 1., 0.]),
            (a().flip([1]), vec![2, 3], vec![2., 1., 0., 5., 4., 3.]),
            (Recipe::Tensor(1).squeeze(1), vec![2], vec![0., 1.]),
            (a().slice(1, 1, 3), vec![2, 2], vec![1., 2., 4., 5.]),
            (a().reshape([6]), vec![6], vec![0., 1., 2., 3., 4., 5.]),
            (Recipe::Join(1, vec![a(), Recipe::Tensor(1)]), vec![2, 4], vec![0., 1., 2., 0., 3., 4., 5., 1.]),
            (Recipe::Sum(vec![a(), a()]), vec![2, 3], vec![0., 2., 4., 6., 8., 10.]),
        ];
        for (recipe, shape, elements) in cases {
            assert_eq!(values(&recipe, &stored), (shape, elements), "{recipe:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_made() {
        let stored = [numbers(&[2, 3]), Array::zeros(DType::I32, [2, 3]).expect("small")];
        let a = || Recipe::Tensor(0);
        for recipe in [
            Recipe::Tensor(2),
            a().transpose([0, 0]),
            a().transpose([0]),
            a().flip([2]),
            a().reshape([5]),
            a().slice(1, 2, 4),
            a().squeeze(0),
            a().squeeze(2),
            Recipe::Join(0, vec![a(), Recipe::Tensor(1)]),
            Recipe::Join(3, vec![a(), a()]),
            Recipe::Sum(vec![]),
        ] {
            assert!(recipe.make(&stored).is_none(), "{recipe:?}");
        }
    }
}
