//! Communication, run on several devices at once: what arrives is what the layouts say.

use crate::cases::{Fill, Random};
use intwain_ir::interp::{EvalError, run_devices};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Layout, Rows, Stage, Tensor, Type, verify};

fn real(shape: &[usize], random: &mut Random) -> Tensor {
    Fill::Real(DType::F64, -1.0, 1.0).tensor(shape, random)
}

/// A graph of one operation for each device.
fn graphs(parts: &[Tensor], op: impl Fn(usize) -> Op) -> Vec<Graph> {
    let one = |device: usize| {
        let mut g = Graph::new("one");
        (g.stage, g.devices, g.device) = (Stage::Local, parts.len(), device);
        let x = g.input("x", parts[device].ty.clone(), Rows::Whole);
        let y = g.push(op(device), &[x]).unwrap();
        g.output("y", y);
        verify(&g).unwrap();
        g
    };
    (0..parts.len()).map(one).collect()
}

fn run(parts: &[Tensor], op: impl Fn(usize) -> Op) -> Vec<Tensor> {
    let args = parts.iter().map(|p| vec![p.clone()]).collect();
    run_devices(&graphs(parts, op), args).unwrap().into_iter().map(|mut y| y.remove(0)).collect()
}

/// Divisions of 5 positions.
const DIVISIONS: [&[usize]; 5] = [&[3, 2], &[0, 5], &[5, 0], &[2, 1, 2], &[5]];

#[test]
fn parts_are_gathered() {
    let x = real(&[5, 3], &mut Random::new(1));
    for sizes in DIVISIONS {
        let layout = Layout::split(0, sizes.iter().copied());
        let parts: Vec<Tensor> = (0..sizes.len()).map(|d| x.part(&layout, d)).collect();
        let got = run(&parts, |device| ops::AllGather { channel: 4, dim: 0, sizes: sizes.to_vec(), device }.into());
        assert!(got.iter().all(|y| *y == x), "{sizes:?}");
    }
}

#[test]
fn partial_values_are_combined_in_device_order() {
    let mut random = Random::new(2);
    for sizes in DIVISIONS {
        let devices = sizes.len();
        for &function in Reduce::ALL {
            let parts: Vec<Tensor> = (0..devices).map(|_| real(&[2, 5], &mut random)).collect();
            let f = |a: f64, b: f64| match function {
                Reduce::Sum => a + b,
                Reduce::Prod => a * b,
                Reduce::Max => a.max(b),
                Reduce::Min => a.min(b),
            };
            let element = |i: usize| parts[1..].iter().fold(parts[0].get(i).to_f64(), |a, p| f(a, p.get(i).to_f64()));
            let want = Tensor::from_f64(DType::F64, [2, 5], &(0..10).map(element).collect::<Vec<_>>());
            let got = run(&parts, |device| ops::AllReduce { channel: 0, function, device, devices }.into());
            assert!(got.iter().all(|y| *y == want), "{function:?} {devices}");
            let scatter =
                |device| ops::ReduceScatter { channel: 0, function, dim: 1, sizes: sizes.to_vec(), device }.into();
            let layout = Layout::split(1, sizes.iter().copied());
            for (device, y) in run(&parts, scatter).into_iter().enumerate() {
                assert_eq!(y, want.part(&layout, device), "{function:?} {sizes:?}");
            }
        }
    }
}

#[test]
fn parts_change_their_dimension() {
    let x = real(&[5, 2, 5], &mut Random::new(3));
    for from_sizes in DIVISIONS {
        for to_sizes in DIVISIONS.iter().filter(|t| t.len() == from_sizes.len()) {
            let (from, to) = (Layout::split(0, from_sizes.iter().copied()), Layout::split(2, to_sizes.iter().copied()));
            let parts: Vec<Tensor> = (0..from_sizes.len()).map(|d| x.part(&from, d)).collect();
            let op = |device| {
                let (from_sizes, to_sizes) = (from_sizes.to_vec(), to_sizes.to_vec());
                ops::AllToAll { channel: 9, from: 0, from_sizes, to: 2, to_sizes, device }.into()
            };
            for (device, y) in run(&parts, op).into_iter().enumerate() {
                assert_eq!(y, x.part(&to, device), "{from_sizes:?} {to_sizes:?}");
            }
        }
    }
}

/// Device 0 sends what device 1 waits for; a wrong channel, type or partner is an error on every device, not a hang.
#[test]
fn values_are_sent() {
    let x = real(&[2, 3], &mut Random::new(4));
    let pair = |channel: usize, ty: Type, from: usize| {
        let mut g = graphs(&[x.clone(), x.clone()], |_| ops::Reverse { dims: vec![] }.into());
        let v = g[0].params[0].value;
        g[0].push_all(ops::Send { channel: 7, to: 1 }, &[v]).unwrap();
        let v = g[1].push(ops::Recv { channel, from, ty }, &[]).unwrap();
        g[1].output("received", v);
        run_devices(&g, vec![vec![x.clone()], vec![x.clone()]])
    };
    assert_eq!(pair(7, x.ty.clone(), 0).unwrap()[1][1], x);
    assert!(matches!(pair(8, x.ty.clone(), 0), Err(EvalError::Unexpected { channel: 8, got_channel: 7, .. })));
    let other = Type::new(DType::F64, [3, 2]);
    assert!(matches!(pair(7, other, 0), Err(EvalError::Unexpected { .. })));
    assert!(matches!(pair(7, x.ty.clone(), 5), Err(EvalError::NoPeer { peer: 5, .. })));
    assert!(matches!(pair(7, x.ty.clone(), 1), Err(EvalError::NoPeer { peer: 1, .. })));
}
