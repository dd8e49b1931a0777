//! Arguments that are small integers, so that sums of products are exact in any order.

use intwain_ir::{DType, Graph, ParamKind, Scalar, Tensor, Type};

/// An argument for every parameter, the same ones every time.
pub(super) fn arguments(graph: &Graph) -> Vec<Tensor> {
    let argument = |(i, p): (usize, &intwain_ir::Param)| {
        let ty = graph.ty(p.value);
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15 ^ (i as u64 + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
        match p.kind {
            ParamKind::Input { .. } => fill(ty, &mut |_| input(ty.dtype, &mut draw)),
            ParamKind::Weight { .. } | ParamKind::State { .. } => weight(&p.name, ty, &mut draw),
        }
    };
    graph.params.iter().enumerate().map(argument).collect()
}

/// A variable of a training, the same whatever else there is.
pub(super) fn state(name: &str, ty: &Type) -> Tensor {
    weight(name, ty, &mut Draw(seed(name)))
}

/// An input of a batch.
pub(super) fn input_tensor(name: &str, ty: &Type) -> Tensor {
    let mut draw = Draw(seed(name));
    fill(ty, &mut |_| input(ty.dtype, &mut draw))
}

/// Labels or sample weights: 0 and 1, which are classes of every model that has several, and probabilities.
pub(super) fn label(at: usize, ty: &Type) -> Tensor {
    let mut draw = Draw(seed(&format!("label {at}")));
    fill(ty, &mut |_| draw.below(2) as f64)
}

fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn fill(ty: &Type, element: &mut dyn FnMut(usize) -> f64) -> Tensor {
    let mut t = Tensor::zeros(ty.clone());
    for i in 0..t.elements() {
        t.set(i, number(ty.dtype, element(i)));
    }
    t
}

fn number(dtype: DType, x: f64) -> Scalar {
    Tensor::from_f64(dtype, [1], &[x]).get(0)
}

/// Numbers that are indices in every vocabulary, and both signs elsewhere.
fn input(dtype: DType, draw: &mut Draw) -> f64 {
    if dtype == DType::Bool || !dtype.is_float() { draw.below(2) as f64 } else { draw.below(5) as f64 - 2.0 }
}

/// Few of many weights are not zero, so that numbers stay small through many layers. Variances are positive.
fn weight(name: &str, ty: &Type, draw: &mut Draw) -> Tensor {
    if name.ends_with("variance") {
        return fill(ty, &mut |_| 1.0 + draw.below(2) as f64);
    }
    let elements = ty.shape.elements();
    let summed = if ty.rank() < 2 { 1 } else { elements / ty.shape.last().copied().unwrap_or(1).max(1) };
    let table = name.ends_with("embeddings");
    let one_of = if table { 2 } else { (summed as u64 / 4).max(1) };
    fill(ty, &mut |_| {
        let sign = if draw.below(2) == 0 { 1.0 } else { -1.0 };
        if draw.below(one_of) == 0 { sign } else { 0.0 }
    })
}

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}
