use super::*;
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Rows, Tensor, Trainable, interp, ops};

pub(super) struct Always;
impl Target for Always {
    fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
        true
    }
}

/// Dense + bias + relu, then a row softmax with a scale before it.
fn model() -> Graph {
    let mut g = Graph::new("m");
    let x = g.input("x", Type::new(DType::F32, [3, 4]), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [4, 5]), Trainable::Yes);
    let b = g.weight("b", Type::new(DType::F32, [5]), Trainable::Yes);
    let h = g.matmul(x, w).unwrap();
    let b2 = g.unary(Unary::Exp, b).unwrap();
    let h = g.binary_broadcast(Binary::Add, h, b2).unwrap();
    let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
    let h = g.binary(Binary::Max, h, zero).unwrap();
    let two = g.full(DType::F32, 2.0, &g.shape(h).clone()).unwrap();
    let s = g.mul(h, two).unwrap();
    let y = g.push(ops::Softmax { dim: 1 }, &[s]).unwrap();
    let z = g.reduce(Reduce::Sum, h, &[1]).unwrap();
    g.output("y", y);
    g.output("z", z);
    g
}

fn run(g: &Graph, clusters: &[Cluster], args: &[Tensor]) -> Vec<Tensor> {
    let mut values: BTreeMap<Value, Tensor> = g.params.iter().map(|p| p.value).zip(args.iter().cloned()).collect();
    for c in clusters {
        if let Work::View = &c.work {
            let (ty, bytes) = (g.ty(c.results[0]).clone(), values[&c.args[0]].data.clone());
            values.insert(c.results[0], Tensor::from_bytes(ty, bytes).unwrap());
            continue;
        }
        let Work::Kernel(compute) = &c.work else { panic!("only kernels and views here") };
        let operands: Vec<&Tensor> = c.args.iter().map(|a| &values[a]).collect();
        let types: Vec<&Type> = c.results.iter().map(|r| g.ty(*r)).collect();
        let results = interp::evaluate(compute, &operands, &types);
        values.extend(c.results.iter().copied().zip(results));
    }
    g.outputs.iter().map(|o| values[&o.value].clone()).collect()
}

#[test]
fn fusion_keeps_the_bits_and_finds_the_kernels() {
    let g = model();
    let clusters = fuse(&g, &Always);
    let regions: Vec<Region> = clusters.iter().map(|c| c.region).collect();
    // exp(b) once; product + bias + relu; scale + softmax; row sums.
    assert_eq!(regions, [Region::Prepare, Region::Step, Region::Step, Region::Step]);
    let numbers = |n: usize| (0..n).map(|i| ((i * 7919 % 23) as f32 - 11.0) / 7.0).collect::<Vec<_>>();
    let args = [([3, 4].as_slice(), 12), ([4, 5].as_slice(), 20), ([5].as_slice(), 5)]
        .map(|(shape, n)| Tensor::from_f32(shape, &numbers(n)));
    assert_eq!(run(&g, &clusters, &args), interp::run(&g, args.to_vec()).unwrap());
}

/// relu is written with its operand read twice, so that its gradient at 0 is 0.
#[test]
fn a_value_that_two_nodes_of_one_cluster_read_is_taken_over() {
    let mut g = Graph::new("m");
    let x = g.input("x", Type::new(DType::F32, [3, 4]), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [4, 5]), Trainable::Yes);
    let h = g.matmul(x, w).unwrap();
    let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
    let below = g.compare(intwain_ir::scalar::Compare::Le, h, zero).unwrap();
    let y = g.select(below, zero, h).unwrap();
    g.output("y", y);
    let clusters = fuse(&g, &Always);
    assert_eq!(clusters.len(), 1);
    let args = [Tensor::from_f32([3, 4], &[0.5; 12]), Tensor::from_f32([4, 5], &[-1.0; 20])];
    assert_eq!(run(&g, &clusters, &args), interp::run(&g, args.to_vec()).unwrap());
}

/// The kernel gradient of a convolution whose rows are summed in blocks: reshapes and transpositions before and after it.
#[test]
fn trees_take_over_products_through_views_and_permutations() {
    let mut g = Graph::new("m");
    let (blocks, rows, side, channels, outputs) = (2, 3, 5, 4, 6);
    let x = g.input("x", Type::new(DType::F32, [blocks * rows, side, channels]), Rows::Batched);
    let dy = g.input("dy", Type::new(DType::F32, [blocks * rows, side - 1, outputs]), Rows::Batched);
    // x: [c, p, (t, i)]; dy: [p, i, (t, o)]
    let x = g.transpose(x, &[2, 1, 0]).unwrap();
    let dy = g.reshape(dy, &[blocks, rows, side - 1, outputs].into()).unwrap();
    let dy = g.transpose(dy, &[2, 1, 0, 3]).unwrap();
    let dy = g.reshape(dy, &[side - 1, rows, blocks * outputs].into()).unwrap();
    let conv = ops::Conv {
        stride: vec![1],
        pads: vec![(0, 0)],
        input_dilation: vec![1],
        kernel_dilation: vec![1],
        groups: blocks,
        batch_groups: 1,
    };
    let dw = g.push(conv, &[x, dy]).unwrap();
    let dw = g.reshape(dw, &[channels, 2, blocks, outputs].into()).unwrap();
    let dw = g.transpose(dw, &[2, 1, 0, 3]).unwrap();
    let dw = g.push(ops::TreeSum::of_leaves(blocks), &[dw]).unwrap();
    g.output("dw", dw);
    let clusters: Vec<Cluster> = fuse(&g, &Always);
    let kernels = clusters.iter().filter(|c| matches!(c.work, Work::Kernel(_)));
    assert_eq!(kernels.count(), 1);
    let numbers = |n: usize| (0..n).map(|i| ((i * 7919 % 23) as f32 - 11.0) / 7.0).collect::<Vec<_>>();
    let args = [[blocks * rows, side, channels], [blocks * rows, side - 1, outputs]];
    let args = args.map(|shape| Tensor::from_f32(shape.as_slice(), &numbers(shape.iter().product())));
    assert_eq!(run(&g, &clusters, &args), interp::run(&g, args.to_vec()).unwrap());
}

#[test]
fn a_target_that_refuses_gets_one_kernel_per_node() {
    struct Never;
    impl Target for Never {
        fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
            false
        }
    }
    let g = model();
    assert_eq!(fuse(&g, &Never).len(), g.nodes.len());
}
