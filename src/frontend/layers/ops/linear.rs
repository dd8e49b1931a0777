//! Sums of products.

use intwain_ir::ops::Contract;
use intwain_ir::scalar::{Binary, Compare, Reduce};
use intwain_ir::{DType, Shape, Value};

use super::args::{Call, Operand, integer, operations};
use super::shaping::band;
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, misfit, unsupported};

operations! {
    matmul = |c| {
        let (x, y) = multiplied(c)?;
        matrix_product(c, x, y)
    };
    dot = |c| {
        let (x, y) = multiplied(c)?;
        let (rx, ry) = (c.cx.rank(x), c.cx.rank(y));
        match (rx, ry) {
            (0, _) | (_, 0) => c.binary(Binary::Mul, x, y),
            (_, 1) => contract(c, x, y, vec![], vec![(rx - 1, 0)]),
            _ => contract(c, x, y, vec![], vec![(rx - 1, ry - 2)]),
        }
    };
    inner = |c| {
        let (x, y) = multiplied(c)?;
        let (rx, ry) = (c.cx.rank(x), c.cx.rank(y));
        match (rx, ry) {
            (0, _) | (_, 0) => c.binary(Binary::Mul, x, y),
            _ => contract(c, x, y, vec![], vec![(rx - 1, ry - 1)]),
        }
    };
    vdot = |c| {
        let (x, y) = multiplied(c)?;
        let (x, y) = (flat(c, x)?, flat(c, y)?);
        contract(c, x, y, vec![], vec![(0, 0)])
    };
    outer = |c| {
        let (x, y) = multiplied(c)?;
        let (x, y) = (flat(c, x)?, flat(c, y)?);
        contract(c, x, y, vec![], vec![])
    };
    tensordot = |c| {
        let axes = c.attr("axes")?.unwrap_or(Json::Int(2));
        let (x, y) = multiplied(c)?;
        let (rx, ry) = (c.cx.rank(x), c.cx.rank(y));
        let pairs = match &axes {
            Json::Array(items) if items.len() == 2 => {
                let (a, b) = (super::args::integers(&items[0])?, super::args::integers(&items[1])?);
                if a.len() != b.len() {
                    return Err(misfit("lists of axes of two lengths"));
                }
                a.iter().zip(&b).map(|(&a, &b)| Ok((c.cx.axis(a, rx)?, c.cx.axis(b, ry)?))).collect::<Out<Vec<_>>>()?
            }
            one => {
                let n = usize::try_from(integer(one)?).ok().filter(|&n| n <= rx && n <= ry);
                let n = n.ok_or_else(|| misfit(format!("contracts {one} axes")))?;
                (0..n).map(|i| (rx - n + i, i)).collect()
            }
        };
        contract(c, x, y, vec![], pairs)
    };
    einsum = |c| {
        let subscripts = c.text("subscripts")?.ok_or_else(|| misfit("has no subscripts"))?;
        let named = c.inputs.get(0, "operands").is_some();
        let values = if c.inputs.args.is_empty() && named {
            c.many("operands")?
        } else {
            let n = c.inputs.args.len();
            let operands = (0..n).map(|i| c.operand(i, "operands")).collect::<Out<Vec<Operand>>>()?;
            c.values(&operands)?
        };
        summed(c, &subscripts, values)
    };
    trace = |c| {
        let d = diagonal_of(c)?;
        let last = c.cx.rank(d) - 1;
        let dtype = c.cx.g.ty(d).dtype;
        let d = if dtype == DType::Bool { c.cx.g.cast(DType::I32, d)? } else { d };
        Ok(c.cx.g.reduce(Reduce::Sum, d, &[last])?)
    };
    diagonal = |c| diagonal_of(c);
    diag = |c| {
        let x = c.tensor(0, "x")?;
        if c.cx.rank(x) == 1 { on_diagonal(c, x) } else { diagonal_of(c) }
    };
    diagflat = |c| {
        let x = c.tensor(0, "x")?;
        let x = flat(c, x)?;
        on_diagonal(c, x)
    };
    kron = |c| {
        let (x, y) = multiplied(c)?;
        let (mut a, mut b) = (c.cx.dims(x), c.cx.dims(y));
        let rank = a.len().max(b.len());
        a.splice(0..0, vec![1; rank - a.len()]);
        b.splice(0..0, vec![1; rank - b.len()]);
        let wide: Vec<usize> = a.iter().zip(&b).flat_map(|(&m, &n)| [m, n]).collect();
        let spread = |c: &mut Call<'_>, v, dims: &[usize], first: usize| -> Out<Value> {
            let v = c.cx.g.reshape(v, &Shape::from(dims.to_vec()))?;
            let places: Vec<usize> = (0..rank).map(|d| 2 * d + first).collect();
            Ok(c.cx.g.broadcast(v, &Shape::from(wide.clone()), &places)?)
        };
        let (x, y) = (spread(c, x, &a, 0)?, spread(c, y, &b, 1)?);
        let z = c.cx.g.mul(x, y)?;
        let shape: Vec<usize> = a.iter().zip(&b).map(|(m, n)| m * n).collect();
        Ok(c.cx.g.reshape(z, &Shape::from(shape))?)
    };
    cross = |c| {
        for key in ["axisa", "axisb", "axisc", "axis"] {
            c.neutral(key, &[Json::Int(-1)])?;
        }
        let (x, y) = c.pair()?;
        let (x, y) = c.cx.g.broadcast_pair(x, y)?;
        let dim = c.cx.rank(x) - 1;
        if c.cx.dims(x)[dim] != 3 {
            return Err(unsupported("a vector product of other than three dimensions"));
        }
        let part = |c: &mut Call<'_>, v, i: usize| c.cx.g.slice_dim(v, dim, i..i + 1);
        let mut parts = Vec::new();
        for i in 0..3 {
            let (j, k) = ((i + 1) % 3, (i + 2) % 3);
            let (a, b) = (part(c, x, j)?, part(c, y, k)?);
            let first = c.cx.g.mul(a, b)?;
            let (a, b) = (part(c, x, k)?, part(c, y, j)?);
            let second = c.cx.g.mul(a, b)?;
            parts.push(c.cx.g.sub(first, second)?);
        }
        super::args::joined(c.cx, &parts, dim)
    };
}

/// Both factors in a type that products have; TensorFlow's flags transpose them first.
fn multiplied(c: &mut Call<'_>) -> Out<(Value, Value)> {
    let (x, y) = c.pair()?;
    let dtype = c.cx.g.ty(x).dtype;
    let dtype = if dtype == DType::Bool { DType::I32 } else { dtype };
    let (mut x, mut y) = (c.cx.g.cast(dtype, x)?, c.cx.g.cast(dtype, y)?);
    for key in ["a_is_sparse", "b_is_sparse", "adjoint_a", "adjoint_b"] {
        c.neutral(key, &[Json::Bool(false)])?;
    }
    let turned = |c: &mut Call<'_>, v: Value| -> Out<Value> {
        let n = c.cx.rank(v);
        let mut perm: Vec<usize> = (0..n).collect();
        if n < 2 {
            return Err(misfit("transposes matrices"));
        }
        perm.swap(n - 2, n - 1);
        Ok(c.cx.g.transpose(v, &perm)?)
    };
    if c.flag("transpose_a")? {
        x = turned(c, x)?;
    }
    if c.flag("transpose_b")? {
        y = turned(c, y)?;
    }
    Ok((x, y))
}

fn flat(c: &mut Call<'_>, x: Value) -> Out<Value> {
    let n = c.cx.g.shape(x).elements();
    Ok(c.cx.g.reshape(x, &Shape::from([n]))?)
}

fn contract(c: &mut Call<'_>, x: Value, y: Value, batch: Vec<(usize, usize)>, over: Vec<(usize, usize)>) -> Out<Value> {
    Ok(c.cx.g.push(Contract { batch, contract: over }, &[x, y])?)
}

/// NumPy's matrix product: the last two dimensions, those before broadcast; a vector is a row on the left, a column on the
/// right.
pub(super) fn matrix_product(c: &mut Call<'_>, x: Value, y: Value) -> Out<Value> {
    let (rx, ry) = (c.cx.rank(x), c.cx.rank(y));
    if rx == 0 || ry == 0 {
        return Err(misfit("a matrix product with a number"));
    }
    if ry <= 2 {
        return contract(c, x, y, vec![], vec![(rx - 1, 0)]);
    }
    if rx == 1 {
        return contract(c, x, y, vec![], vec![(0, ry - 2)]);
    }
    let rank = rx.max(ry);
    let (sx, sy) = (c.cx.dims(x), c.cx.dims(y));
    let at = |s: &[usize], d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    let one = |d| if at(&sx, d) == 1 { at(&sy, d) } else { at(&sx, d) };
    let batch: Vec<usize> = (0..rank - 2).map(one).collect();
    let with = |s: &[usize]| -> Vec<usize> { batch.iter().chain(&s[s.len() - 2..]).copied().collect() };
    let (x, y) = (c.cx.g.broadcast_to(x, &Shape::from(with(&sx)))?, c.cx.g.broadcast_to(y, &Shape::from(with(&sy)))?);
    contract(c, x, y, (0..rank - 2).map(|d| (d, d)).collect(), vec![(rank - 1, rank - 2)])
}

/// An operand with a letter for every dimension.
struct Lettered {
    value: Value,
    letters: Vec<char>,
}

/// An equation in Einstein's notation, operand by operand.
fn summed(c: &mut Call<'_>, subscripts: &str, values: Vec<Value>) -> Out<Value> {
    let text: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left.to_string(), Some(right.to_string())),
        None => (text.clone(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != values.len() || values.is_empty() {
        return Err(misfit(format!("`{subscripts}` has {} operands, {} are given", parts.len(), values.len())));
    }
    let wrong = || misfit(format!("`{subscripts}` does not fit its operands"));
    let mut operands = Vec::new();
    let mut elided = 0;
    for (part, &value) in parts.iter().zip(&values) {
        let named = part.replace("...", "").chars().count();
        let rest = c.cx.rank(value).checked_sub(named).ok_or_else(wrong)?;
        if rest > 0 && !part.contains("...") {
            return Err(wrong());
        }
        elided = elided.max(rest);
        operands.push((*part, value, rest));
    }
    // Letters of an ellipsis are counted from its end.
    let stand_in = |rest: usize| (0..rest).rev().filter_map(|i| char::from_u32(0xE000 + i as u32));
    let expand = |part: &str, rest: usize| -> Vec<char> {
        match part.split_once("...") {
            Some((before, after)) => before.chars().chain(stand_in(rest)).chain(after.chars()).collect(),
            None => part.chars().collect(),
        }
    };
    let mut lettered = Vec::new();
    for (part, value, rest) in operands {
        lettered.push(unrepeated(c, Lettered { value, letters: expand(part, rest) })?);
    }
    let output = match right {
        Some(right) => expand(&right, elided),
        None => {
            let all = left.replace("...", "").replace(',', "");
            let mut once: Vec<char> = all.chars().filter(|l| all.matches(*l).count() == 1).collect();
            once.sort_unstable();
            stand_in(elided).chain(once).collect()
        }
    };
    let mut rest = lettered.into_iter();
    let mut product = rest.next().ok_or_else(wrong)?;
    let mut rest: Vec<Lettered> = rest.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let later = |l: &char| output.contains(l) || rest.iter().any(|r| r.letters.contains(l));
        product = joined_letters(c, product, next, &later)?;
    }
    ordered(c, product, &output).ok_or_else(wrong)?
}

/// A letter twice in one operand takes its diagonal.
fn unrepeated(c: &mut Call<'_>, mut x: Lettered) -> Out<Lettered> {
    while let Some(second) = (0..x.letters.len()).find(|&i| x.letters[..i].contains(&x.letters[i])) {
        let first = x.letters.iter().position(|l| *l == x.letters[second]).unwrap_or(0);
        let rank = x.letters.len();
        let mut perm: Vec<usize> = (0..rank).filter(|d| *d != first && *d != second).collect();
        perm.extend([first, second]);
        let turned = c.cx.g.transpose(x.value, &perm)?;
        x.value = diagonal_behind(c, turned, 0)?;
        let letter = x.letters[first];
        x.letters = perm[..rank - 2].iter().map(|&d| x.letters[d]).chain([letter]).collect();
    }
    Ok(x)
}

/// The product of two operands, without the letters that nothing later wants.
fn joined_letters(c: &mut Call<'_>, x: Lettered, y: Lettered, later: &dyn Fn(&char) -> bool) -> Out<Lettered> {
    let x = without(c, x, &|l| later(l) || y.letters.contains(l))?;
    let kept = x.letters.clone();
    let mut y = without(c, y, &|l| later(l) || kept.contains(l))?;
    let mut x = x;
    // Of an ellipsis, dimensions of extent 1 broadcast: they are dropped from the side that has them.
    let shared: Vec<char> = x.letters.iter().copied().filter(|l| y.letters.contains(l)).collect();
    for l in shared {
        let (nx, ny) = (extent(c, &x, l), extent(c, &y, l));
        if nx != ny && nx == 1 {
            x = dropped(c, x, l)?;
        } else if nx != ny && ny == 1 {
            y = dropped(c, y, l)?;
        }
    }
    let at = |v: &Lettered, l: char| v.letters.iter().position(|m| *m == l);
    let (mut batch, mut over) = (Vec::new(), Vec::new());
    let mut letters = Vec::new();
    for (i, &l) in x.letters.iter().enumerate() {
        match at(&y, l) {
            Some(j) if later(&l) => {
                batch.push((i, j));
                letters.push(l);
            }
            Some(j) => over.push((i, j)),
            None => {}
        }
    }
    letters.extend(x.letters.iter().filter(|l| at(&y, **l).is_none()));
    letters.extend(y.letters.iter().filter(|l| at(&x, **l).is_none()));
    let value = contract(c, x.value, y.value, batch, over)?;
    Ok(Lettered { value, letters })
}

fn extent(c: &Call<'_>, x: &Lettered, letter: char) -> usize {
    let at = x.letters.iter().position(|l| *l == letter);
    at.map_or(1, |d| c.cx.dims(x.value)[d])
}

fn dropped(c: &mut Call<'_>, x: Lettered, letter: char) -> Out<Lettered> {
    let kept: Vec<usize> = (0..x.letters.len()).filter(|&d| x.letters[d] != letter).collect();
    let dims = c.cx.dims(x.value);
    let shape: Vec<usize> = kept.iter().map(|&d| dims[d]).collect();
    let value = c.cx.g.reshape(x.value, &Shape::from(shape))?;
    Ok(Lettered { value, letters: kept.iter().map(|&d| x.letters[d]).collect() })
}

/// Sums over the letters that nothing wants.
fn without(c: &mut Call<'_>, x: Lettered, wanted: &dyn Fn(&char) -> bool) -> Out<Lettered> {
    let gone: Vec<usize> = (0..x.letters.len()).filter(|&d| !wanted(&x.letters[d])).collect();
    if gone.is_empty() {
        return Ok(x);
    }
    let letters = x.letters.iter().copied().filter(|l| wanted(l)).collect();
    Ok(Lettered { value: c.cx.g.reduce(Reduce::Sum, x.value, &gone)?, letters })
}

/// The dimensions in the order of the output, `None` where a letter of it is nowhere.
fn ordered(c: &mut Call<'_>, x: Lettered, output: &[char]) -> Option<Out<Value>> {
    if output.iter().any(|l| !x.letters.contains(l)) {
        return None;
    }
    let run = |c: &mut Call<'_>| -> Out<Value> {
        let x = without(c, x, &|l| output.contains(l))?;
        let perm: Vec<usize> = output.iter().filter_map(|l| x.letters.iter().position(|m| m == l)).collect();
        Ok(c.cx.g.transpose(x.value, &perm)?)
    };
    Some(run(c))
}

/// The diagonal of the last two dimensions: what is beside it counts as 0 in a sum.
fn diagonal_behind(c: &mut Call<'_>, x: Value, offset: i64) -> Out<Value> {
    let dims = c.cx.dims(x);
    let rank = dims.len();
    let (rows, columns) = (dims[rank - 2] as i64, dims[rank - 1] as i64);
    let (first_row, first_column) = ((-offset).max(0), offset.max(0));
    let n = (rows - first_row).min(columns - first_column).max(0) as usize;
    let (row, column) = (first_row.min(rows) as usize, first_column.min(columns) as usize);
    let x = c.cx.g.slice_dim(x, rank - 2, row..row + n)?;
    let x = c.cx.g.slice_dim(x, rank - 1, column..column + n)?;
    let on = band(c, &Shape::from([n, n]), Compare::Eq, 0)?;
    let shape = c.cx.g.shape(x).clone();
    let (on, zero) = (c.cx.g.broadcast_to(on, &shape)?, c.like(x, 0.0)?);
    let on = c.cx.g.select(on, x, zero)?;
    Ok(c.cx.g.reduce(Reduce::Sum, on, &[rank - 2])?)
}

fn diagonal_of(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let rank = c.cx.rank(x);
    let (a, b) = (c.int("axis1")?.unwrap_or(0), c.int("axis2")?.unwrap_or(1));
    let (a, b) = (c.cx.axis(a, rank)?, c.cx.axis(b, rank)?);
    let offset = match c.int("offset")? {
        Some(offset) => offset,
        None => c.int("k")?.unwrap_or(0),
    };
    let mut perm: Vec<usize> = (0..rank).filter(|d| *d != a && *d != b).collect();
    perm.extend([a, b]);
    let x = c.cx.g.transpose(x, &perm)?;
    diagonal_behind(c, x, offset)
}

/// A matrix with a vector on its k-th diagonal.
fn on_diagonal(c: &mut Call<'_>, x: Value) -> Out<Value> {
    let k = c.int("k")?.unwrap_or(0);
    let n = c.cx.dims(x)[0];
    let away = usize::try_from(k.unsigned_abs()).map_err(|_| misfit(format!("the diagonal {k}")))?;
    let square = Shape::from([n, n]);
    let on = band(c, &square, Compare::Eq, 0)?;
    let wide = c.cx.g.broadcast(x, &square, &[1])?;
    let zero = c.like(wide, 0.0)?;
    let y = c.cx.g.select(on, wide, zero)?;
    let (away, none) = (away as i64, intwain_ir::Scalar::zero(c.cx.g.ty(x).dtype));
    let (low, high) = if k >= 0 { (vec![0, away], vec![away, 0]) } else { (vec![away, 0], vec![0, away]) };
    Ok(c.cx.g.push(intwain_ir::ops::Pad { low, high, interior: vec![0; 2], value: vec![none] }, &[y])?)
}
