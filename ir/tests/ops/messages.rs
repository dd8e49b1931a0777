//! What communication says about its messages is what running it does: the interpreter on the Computes gives the results
//! of devices that run the operations.

use crate::cases::{Fill, Random};
use intwain_ir::interp::{evaluate, run_devices};
use intwain_ir::messages::{Messages, Piece};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Layout, Rows, Stage, Tensor, Type};

/// The devices' messages, sent and taken by the interpreter.
fn by_messages(ops: &[Op; 2], operands: &[Option<Tensor>; 2]) -> Vec<Option<Tensor>> {
    let types = |d: usize| operands[d].iter().map(|t| &t.ty).collect::<Vec<_>>();
    let results: Vec<Vec<Type>> = (0..2).map(|d| ops[d].infer(&types(d)).unwrap().to_vec()).collect();
    let of = |d: usize| ops[d].messages(&types(d), &results[d].iter().collect::<Vec<_>>()).unwrap();
    let said = [of(0), of(1)];
    let sent: Vec<Option<Tensor>> = (0..2)
        .map(|d| {
            let own = operands[d].as_ref();
            said[d].outgoing.as_ref().map(|p| value(p, own, None))
        })
        .collect();
    for d in 0..2 {
        assert_eq!(said[d].peer, 1 - d);
        assert_eq!(said[d].channel, said[1 - d].channel);
        assert_eq!(said[d].incoming.as_ref(), sent[1 - d].as_ref().map(|m| &m.ty));
    }
    (0..2)
        .map(|d| {
            let ty = results[d].first()?;
            let mut y = Tensor::zeros(ty.clone());
            let mut written = 0;
            for piece in &said[d].result {
                assert_eq!(piece.reads_message(), piece.compute.to_string().contains("load %1"));
                put(&mut y, piece, &value(piece, operands[d].as_ref(), sent[1 - d].as_ref()));
                written += piece.ty.shape.elements();
            }
            assert_eq!(written, ty.shape.elements());
            Some(y)
        })
        .collect()
}

fn value(piece: &Piece, own: Option<&Tensor>, message: Option<&Tensor>) -> Tensor {
    let nothing = Tensor::zeros(Type::new(DType::F32, [0]));
    let mut operands = [&nothing; 2];
    operands[Messages::OWN] = own.unwrap_or(&nothing);
    operands[Messages::MESSAGE] = message.unwrap_or(&nothing);
    evaluate(&piece.compute, &operands, &[&piece.ty]).remove(0)
}

fn put(y: &mut Tensor, piece: &Piece, x: &Tensor) {
    let (strides, shape) = (y.ty.shape.strides(), &piece.ty.shape);
    for i in 0..x.elements() {
        let mut rest = i;
        let mut at = 0;
        for d in (0..shape.len()).rev() {
            at += (piece.start[d] + rest % shape[d]) * strides[d];
            rest /= shape[d];
        }
        y.set(at, x.get(i));
    }
}

/// The same by running the operations.
fn by_running(ops: &[Op; 2], operands: &[Option<Tensor>; 2]) -> Vec<Option<Tensor>> {
    let graphs: Vec<Graph> = (0..2)
        .map(|d| {
            let mut g = Graph::new("one");
            (g.stage, g.devices, g.device) = (Stage::Local, 2, d);
            let x = operands[d].as_ref().map(|t| g.input("x", t.ty.clone(), Rows::Whole));
            let made = g.push_all(ops[d].clone(), x.as_slice()).unwrap();
            made.iter().for_each(|y| g.output("y", *y));
            g
        })
        .collect();
    let args = operands.iter().map(|t| t.iter().cloned().collect()).collect();
    run_devices(&graphs, args).unwrap().into_iter().map(|mut y| y.pop()).collect()
}

fn check(ops: [Op; 2], operands: [Option<Tensor>; 2]) -> Vec<Option<Tensor>> {
    let got = by_messages(&ops, &operands);
    assert_eq!(got, by_running(&ops, &operands), "{} {}", ops[0], ops[1]);
    got
}

const DIVISIONS: [[usize; 2]; 4] = [[3, 2], [0, 5], [5, 0], [1, 4]];

fn parts(x: &Tensor, dim: usize, sizes: [usize; 2]) -> [Option<Tensor>; 2] {
    let layout = Layout::split(dim, sizes);
    [0, 1].map(|d| Some(x.part(&layout, d)))
}

#[test]
fn values_are_sent() {
    let mut random = Random::new(1);
    for (from, shape) in [(0, vec![2, 3]), (1, vec![]), (0, vec![0, 4]), (1, vec![5])] {
        let x = Fill::Real(DType::F16, -1.0, 1.0).tensor(&shape, &mut random);
        let send = Op::from(ops::Send { channel: 3, to: 1 - from });
        let recv = Op::from(ops::Recv { channel: 3, from, ty: x.ty.clone() });
        let got = match from {
            0 => check([send, recv], [Some(x.clone()), None]),
            _ => check([recv, send], [None, Some(x.clone())]),
        };
        assert_eq!(got[1 - from].as_ref(), Some(&x));
    }
}

#[test]
fn values_are_gathered_and_turned() {
    let mut random = Random::new(2);
    for dtype in [DType::F32, DType::Bool, DType::I64] {
        let x = Fill::Real(dtype, -9.0, 9.0).tensor(&[5, 2, 5], &mut random);
        for sizes in DIVISIONS {
            for dim in [0, 2] {
                let op = |device| ops::AllGather { channel: 0, dim, sizes: sizes.to_vec(), device }.into();
                check([op(0), op(1)], parts(&x, dim, sizes));
            }
            for to_sizes in DIVISIONS {
                for (from, to) in [(0, 2), (2, 0)] {
                    let op = |device| {
                        let (from_sizes, to_sizes) = (sizes.to_vec(), to_sizes.to_vec());
                        ops::AllToAll { channel: 0, from, from_sizes, to, to_sizes, device }.into()
                    };
                    check([op(0), op(1)], parts(&x, from, sizes));
                }
            }
        }
    }
}

#[test]
fn values_are_combined() {
    let mut random = Random::new(3);
    for &function in Reduce::ALL {
        for dtype in [DType::F32, DType::BF16, DType::I32] {
            let mut real = |shape: &[usize]| Some(Fill::Real(dtype, -9.0, 9.0).tensor(shape, &mut random));
            for shape in [vec![5, 5], vec![], vec![0]] {
                let op = |device| ops::AllReduce { channel: 1, function, device, devices: 2 }.into();
                let got = check([op(0), op(1)], [real(&shape), real(&shape)]);
                assert_eq!(got[0], got[1]);
            }
            for sizes in DIVISIONS {
                for dim in [0, 1] {
                    let op =
                        |device| ops::ReduceScatter { channel: 1, function, dim, sizes: sizes.to_vec(), device }.into();
                    check([op(0), op(1)], [real(&[5, 5]), real(&[5, 5])]);
                }
            }
        }
    }
}

/// NaN on one device, infinities on both, zeros of both signs: the order of the devices decides, so bits are equal.
#[test]
fn both_devices_get_the_same_bits() {
    let x = Tensor::from_f32([5], &[f32::NAN, f32::INFINITY, -0.0, 0.0, 1.0]);
    let y = Tensor::from_f32([5], &[1.0, f32::NEG_INFINITY, 0.0, -0.0, f32::NAN]);
    for &function in Reduce::ALL {
        let op = |device| ops::AllReduce { channel: 1, function, device, devices: 2 }.into();
        let got = by_messages(&[op(0), op(1)], &[Some(x.clone()), Some(y.clone())]);
        assert_eq!(got[0].as_ref().unwrap().data, got[1].as_ref().unwrap().data);
    }
}

#[test]
fn messages_are_between_two() {
    let x = Type::new(DType::F32, [6]);
    let all = Op::from(ops::AllReduce { channel: 1, function: Reduce::Sum, device: 0, devices: 3 });
    assert_eq!(all.messages(&[&x], &[&x]), None);
    assert_eq!(Op::from(ops::Reverse { dims: vec![0] }).messages(&[&x], &[&x]), None);
}

/// Operands that share a message say what they would say alone, and run as such.
#[test]
fn members_of_a_bucket_are_those_of_one_each() {
    let mut random = Random::new(77);
    let x = |random: &mut Random, shape: &[usize]| Fill::Real(DType::F32, -2.0, 2.0).tensor(shape, random);
    for sizes in DIVISIONS {
        let shapes: [&[usize]; 3] = [&[3, 2], &[4, 5], &[]];
        let operands: Vec<Vec<Tensor>> = (0..2).map(|_| shapes.iter().map(|s| x(&mut random, s)).collect()).collect();
        let kept = vec![ops::Kept::All, ops::Kept::Part { dim: 1, sizes: sizes.to_vec() }, ops::Kept::All];
        let sum = |device| ops::AllReduce { channel: 3, function: Reduce::Sum, device, devices: 2 };
        let part =
            |device| ops::ReduceScatter { channel: 3, function: Reduce::Sum, dim: 1, sizes: sizes.to_vec(), device };
        let graphs: Vec<Graph> = (0..2)
            .map(|device| {
                let mut g = Graph::new("bucket");
                (g.stage, g.devices, g.device) = (Stage::Local, 2, device);
                let args: Vec<_> = operands[device]
                    .iter()
                    .enumerate()
                    .map(|(i, t)| g.input(&format!("x{i}"), t.ty.clone(), Rows::Whole))
                    .collect();
                let op = ops::Bucket { channel: 3, function: Reduce::Sum, kept: kept.clone(), device, devices: 2 };
                let made = g.push_all(op.clone(), &args).unwrap();
                made.iter().enumerate().for_each(|(i, y)| g.output(&format!("y{i}"), *y));
                let (args, results) =
                    (g.arg_types(g.def_node(made[0]).unwrap()), g.result_types(g.def_node(made[0]).unwrap()));
                let alone = [Op::from(sum(device)), part(device).into(), sum(device).into()];
                let each =
                    alone.iter().zip(args.iter().zip(&results)).map(|(op, (x, y))| op.messages(&[x], &[y]).unwrap());
                assert_eq!(Op::from(op).members(&args, &results).unwrap(), each.collect::<Vec<_>>());
                g
            })
            .collect();
        let got = run_devices(&graphs, operands.clone()).unwrap();
        for (member, kept) in kept.iter().enumerate() {
            let ops: [Op; 2] = [0, 1].map(|device| match kept {
                ops::Kept::All => sum(device).into(),
                ops::Kept::Part { .. } => part(device).into(),
            });
            let want = by_running(&ops, &[0, 1].map(|d| Some(operands[d][member].clone())));
            for device in 0..2 {
                assert_eq!(Some(&got[device][member]), want[device].as_ref(), "{sizes:?} {member}");
            }
        }
    }
}

#[test]
fn buckets_are_refused_where_operands_and_results_differ() {
    let x = Type::new(DType::F32, [4, 2]);
    let of =
        |kept: Vec<ops::Kept>| Op::from(ops::Bucket { channel: 0, function: Reduce::Sum, kept, device: 0, devices: 2 });
    let part = |sizes: &[usize]| ops::Kept::Part { dim: 0, sizes: sizes.to_vec() };
    assert!(of(vec![ops::Kept::All, part(&[3, 1])]).infer(&[&x, &x]).is_ok());
    for (kept, args) in [(vec![ops::Kept::All], 2), (vec![], 0), (vec![part(&[3, 2])], 1), (vec![part(&[2, 1, 1])], 1)]
    {
        let args = vec![&x; args];
        assert!(of(kept.clone()).infer(&args).is_err(), "{kept:?}");
    }
}
