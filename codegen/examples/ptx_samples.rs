//! Writes the PTX of kernels that `tools/sass_compare.py` compares with those of another compiler: contractions with
//! given tiles, softmax and layer norm along rows.
//!
//! `cargo run -p intwain-codegen --example ptx_samples -- DIRECTORY`

use intwain_codegen::ptx;
use intwain_codegen::schedule::gpu::{Gpu, GpuKernel, Precision, Tile};
use intwain_ir::compute::{Compute, Expr, Index};
use intwain_ir::kernel::Kernel;
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{DType, Scalar, Type};
use std::error::Error;
use std::path::{Path, PathBuf};

const fn tile(rows: usize, columns: usize, inner: usize, warps: [usize; 2], stages: usize) -> Tile {
    Tile { rows, columns, inner, warps, stages }
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: ptx_samples DIRECTORY")?;
    std::fs::create_dir_all(&directory)?;
    // Whole tiles, and tiles that no extent is a multiple of.
    for (suffix, n) in [("", 4096), ("_tail", 4072)] {
        for (which, t) in [
            ("", tile(64, 64, 32, [2, 2], 4)),
            ("", tile(128, 128, 32, [2, 2], 4)),
            ("", tile(128, 128, 64, [4, 2], 3)),
            ("", tile(128, 256, 64, [2, 4], 3)),
            ("_bias_gelu", tile(128, 128, 32, [4, 2], 3)),
        ] {
            let name = name(&format!("matmul{which}"), &t, suffix);
            let args = [Type::new(DType::BF16, [n, n]), Type::new(DType::BF16, [n, n]), Type::new(DType::BF16, [n])];
            let (mut compute, result) = product(&args[..2])?;
            if !which.is_empty() {
                compute = with_bias_and_gelu(compute, &args[2]);
            }
            let operands = &args[..if which.is_empty() { 2 } else { 3 }];
            write(&directory, &name, Precision::F32, &compute, operands, &result, &t)?;
        }
        let t = tile(128, 128, 32, [2, 4], 3);
        let args = [Type::new(DType::F32, [n, n]), Type::new(DType::F32, [n, n])];
        let (compute, result) = product(&args)?;
        write(&directory, &name("matmul_tf32", &t, suffix), Precision::Tf32, &compute, &args, &result, &t)?;
    }
    for n in [1024, 4096, 16384] {
        let x = Type::new(DType::F32, [4096, n]);
        let (compute, result) = body(ops::Softmax { dim: 1 }, std::slice::from_ref(&x))?;
        rows(&directory, &format!("softmax_{n}"), &compute, &[x], &result)?;
    }
    for n in [1024, 4096, 8192] {
        let args = [Type::new(DType::BF16, [4096, n]), Type::new(DType::F32, [n]), Type::new(DType::F32, [n])];
        let (compute, result) = body(ops::Standardize { dims: vec![1], epsilon: 1e-5 }, &args[..1])?;
        let compute = with_scale_and_shift(compute, &args[1..]);
        rows(&directory, &format!("layernorm_{n}"), &compute, &args, &result)?;
    }
    Ok(())
}

fn name(what: &str, t: &Tile, suffix: &str) -> String {
    let warps = t.warps[0] * t.warps[1];
    format!("{what}_{}x{}x{}_w{warps}_s{}{suffix}", t.rows, t.columns, t.inner, t.stages)
}

/// A matrix product of row-major operands.
fn product(args: &[Type]) -> Result<(Compute, Type), Box<dyn Error>> {
    body(ops::Contract { batch: vec![], contract: vec![(1, 0)] }, args)
}

/// What an operation computes, and its result.
fn body(op: impl Into<Op>, args: &[Type]) -> Result<(Compute, Type), Box<dyn Error>> {
    let op: Op = op.into();
    let args: Vec<&Type> = args.iter().collect();
    let results = op.infer(&args)?;
    match op.body(&args, &results.iter().collect::<Vec<_>>()) {
        Body::Compute(c) => Ok((c, results[0].clone())),
        _ => Err("the operation is a compute".into()),
    }
}

/// Times the first operand, plus the second, along the last axis, in f32.
fn with_scale_and_shift(mut c: Compute, types: &[Type]) -> Compute {
    let cast = c.results()[0];
    let Expr::Cast(to, y) = *c.expr(cast) else { return c };
    let column = c.position().pop().unwrap_or_else(|| Index::constant(0));
    let [scale, shift] = [0, 1].map(|i| c.load(1 + i, &types[i], vec![column.clone()]));
    let y = c.binary(Binary::Mul, y, scale);
    let y = c.binary(Binary::Add, y, shift);
    let y = c.cast(to, y);
    c.with_results([y])
}

/// x·sigmoid(1.702·x) of the product and a bias, in f32.
fn with_bias_and_gelu(mut c: Compute, bias: &Type) -> Compute {
    let cast = c.results()[0];
    let Expr::Cast(to, sum) = *c.expr(cast) else { return c };
    let column = c.position().pop().unwrap_or_else(|| Index::constant(0));
    let b = c.load(2, bias, vec![column]);
    let b = c.cast(DType::F32, b);
    let x = c.binary(Binary::Add, sum, b);
    let scale = c.constant(Scalar::from_f64(DType::F32, 1.702));
    let scaled = c.binary(Binary::Mul, x, scale);
    let gate = c.unary(Unary::Logistic, scaled);
    let y = c.binary(Binary::Mul, x, gate);
    let y = c.cast(to, y);
    c.with_results([y])
}

fn write(
    directory: &Path,
    name: &str,
    precision: Precision,
    compute: &Compute,
    operands: &[Type],
    result: &Type,
    tile: &Tile,
) -> Result<(), Box<dyn Error>> {
    let operands: Vec<&Type> = operands.iter().collect();
    let kernel: GpuKernel = Gpu { precision }
        .schedule_tile(name, compute, &operands, &[result], tile)
        .ok_or_else(|| format!("{name}: the tile doesn't fit"))?;
    save(directory, name, &kernel)
}

/// The kernel of a reduction along rows.
fn rows(
    directory: &Path,
    name: &str,
    compute: &Compute,
    operands: &[Type],
    result: &Type,
) -> Result<(), Box<dyn Error>> {
    let operands: Vec<&Type> = operands.iter().collect();
    save(directory, name, &Gpu::default().schedule(name, compute, &operands, &[result]))
}

fn save(directory: &Path, name: &str, kernel: &GpuKernel) -> Result<(), Box<dyn Error>> {
    let kernels: Vec<&Kernel> = kernel.launches.iter().map(|l| &l.kernel).collect();
    std::fs::write(directory.join(format!("{name}.ptx")), ptx::module(&kernels)?)?;
    Ok(())
}
