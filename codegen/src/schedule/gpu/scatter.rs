//! Rows added up in a table, in their order and without atomics: every element of the table belongs to one thread.
//!
//! Few rows are all looked at for every element. Many rows are first brought into the order of their positions, each row
//! counting those before it; then a thread finds the rows of its element by bisection. Rows of one position keep their
//! order, so every sum has the order that the operation states.

use super::launch::identifier;
use super::{ALIGNMENT, Argument, Gpu, GpuKernel, Launch};
use intwain_ir::kernel::{Access, Bound, Builder, Entry, Id, Inst, Place, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar};
use intwain_ir::{DType, Type};
use smallvec::SmallVec;

/// Threads of a block.
const THREADS: usize = 256;

/// So many rows are looked at one after another for every element.
const FEW: usize = 64;

/// Bytes of the widest access.
const WIDEST: usize = 16;

impl Gpu {
    /// A table of zeros to which row `i` of `rows` is added at position `at[i]`, in order: `at: int[ids..]`,
    /// `rows: T[ids.., rest..]`, `table: T[n, rest..]`. Position `base` is the table's first row; others than its rows are
    /// dropped. Operands are `at` and `rows`.
    pub fn scatter_add(&self, name: &str, at: &Type, rows: &Type, table: &Type, base: i64) -> GpuKernel {
        let count = at.shape.elements();
        let columns: usize = table.shape[1..].iter().product();
        let s = Scatter { name: identifier(name), at, rows, table, base, count, columns };
        if table.shape.elements() == 0 {
            return GpuKernel { launches: Vec::new(), workspace: 0, schedule: "scatter" };
        }
        if count <= FEW {
            return GpuKernel { launches: vec![s.scan()], workspace: 0, schedule: "scatter" };
        }
        let list = (count * s.listed().size()).next_multiple_of(ALIGNMENT as usize);
        let lists = Lists { keys: 0, order: list };
        let launches = vec![s.sort(lists), s.segments(lists)];
        GpuKernel { launches, workspace: 2 * list, schedule: "sorted scatter" }
    }
}

struct Scatter<'a> {
    name: String,
    at: &'a Type,
    rows: &'a Type,
    table: &'a Type,
    base: i64,
    /// Rows added.
    count: usize,
    /// Elements of a row.
    columns: usize,
}

/// Where the sorted lists begin in the workspace: positions in the table in ascending order, and the rows they are of.
#[derive(Clone, Copy)]
struct Lists {
    keys: usize,
    order: usize,
}

/// A kernel being written.
struct Draft {
    b: Builder,
    args: Vec<Argument>,
}

/// Neighbouring elements of the table that a thread owns.
struct Own {
    /// Row of the table, i64.
    row: Reg,
    /// First column, i64.
    column: Reg,
    /// How many.
    width: usize,
}

impl Draft {
    /// One thread per unit, in blocks of [`THREADS`]; gives the thread's number too.
    fn new(name: String, units: usize) -> (Draft, Reg) {
        let blocks = u32::try_from(units.div_ceil(THREADS)).ok().filter(|n| *n <= i32::MAX as u32);
        let blocks = blocks.expect("results that fit a device's memory need fewer than 2^31 blocks");
        let entry = Entry::Grid { blocks: [blocks, 1, 1], threads: [THREADS as u32, 1, 1] };
        let mut b = Builder::new(name, entry, Bound::Memory);
        let (block, thread, size) = (b.id(Id::Block(0)), b.id(Id::Thread(0)), b.index(THREADS as i64));
        let first = b.binary(Binary::Mul, block, size);
        let number = b.binary(Binary::Add, first, thread);
        (Draft { b, args: Vec::new() }, number)
    }

    fn param(&mut self, arg: Argument, dtype: DType, elements: usize, access: Access) -> Place {
        self.args.push(arg);
        self.b.aligned_param(dtype, elements, access, ALIGNMENT)
    }

    fn finish(self) -> Launch {
        Launch { kernel: self.b.finish(), args: self.args }
    }

    /// Writes `f` for threads below `n`.
    fn below(&mut self, number: Reg, n: usize, f: impl FnOnce(&mut Draft)) {
        if n.is_multiple_of(THREADS) {
            return f(self);
        }
        let n = self.b.index(n as i64);
        let inside = self.b.compare(Compare::Lt, number, n);
        self.b.open_block();
        f(self);
        let then = self.b.take_block();
        self.b.conditional(inside, (then, &[]), (Default::default(), &[]));
    }
}

impl Scatter<'_> {
    /// Elements of the table that a thread owns: as many as one access has.
    fn width(&self) -> usize {
        let size = self.table.dtype.size();
        // Only elements of two bytes have vectors of eight.
        let most = if size == 2 { 8 } else { (WIDEST / size).min(4) };
        (0..=most.ilog2()).rev().map(|p| 1 << p).find(|w| self.columns.is_multiple_of(*w)).unwrap_or(1)
    }

    fn units(&self) -> usize {
        self.table.shape.elements() / self.width()
    }

    fn own(&self, b: &mut Builder, number: Reg) -> Own {
        let width = self.width();
        let groups = b.index((self.columns / width) as i64);
        let row = b.binary(Binary::FloorDiv, number, groups);
        let group = b.binary(Binary::Mod, number, groups);
        let w = b.index(width as i64);
        Own { row, column: b.binary(Binary::Mul, group, w), width }
    }

    fn positions(&self, d: &mut Draft) -> Place {
        d.param(Argument::Operand(0), self.at.dtype, self.count, Access::Constant)
    }

    fn added(&self, d: &mut Draft) -> Place {
        d.param(Argument::Operand(1), self.rows.dtype, self.rows.shape.elements(), Access::Constant)
    }

    fn result(&self, d: &mut Draft) -> Place {
        d.param(Argument::Result(0), self.table.dtype, self.table.shape.elements(), Access::Write)
    }

    /// Row of the table that row `i` is added to; beyond its end if there is none. i64.
    fn key(&self, b: &mut Builder, at: Place, i: Reg) -> Reg {
        let position = b.load(at, i, 0, 1);
        let position = b.cast(DType::I64, position);
        let base = b.index(self.base);
        let key = b.binary(Binary::Sub, position, base);
        let (zero, end) = (b.index(0), b.index(self.table.shape[0] as i64));
        let low = b.compare(Compare::Ge, key, zero);
        let high = b.compare(Compare::Lt, key, end);
        let inside = b.binary(Binary::And, low, high);
        b.select(inside, key, end)
    }

    fn accumulator(&self) -> DType {
        self.table.dtype.accumulator()
    }

    fn zeros(&self, b: &mut Builder, width: usize) -> Vec<Reg> {
        vec![b.constant(Scalar::zero(self.accumulator())); width]
    }

    /// The sums with row `i` added.
    fn add(&self, b: &mut Builder, rows: Place, own: &Own, i: Reg, sums: &[Reg]) -> Vec<Reg> {
        let columns = b.index(self.columns as i64);
        let before = b.binary(Binary::Mul, i, columns);
        let first = b.binary(Binary::Add, before, own.column);
        let x = b.load(rows, first, 0, own.width as u8);
        let element = RegType::scalar(self.rows.dtype);
        let lane = |b: &mut Builder, lane: usize| match own.width {
            1 => x,
            _ => b.inst(element, Inst::Extract(x, lane as u8)),
        };
        let acc = self.accumulator();
        sums.iter()
            .enumerate()
            .map(|(n, &sum)| {
                let x = lane(b, n);
                let x = b.cast(acc, x);
                b.binary(Binary::Add, sum, x)
            })
            .collect()
    }

    fn store(&self, b: &mut Builder, table: Place, own: &Own, number: Reg, sums: &[Reg]) {
        let dtype = self.table.dtype;
        let lanes: SmallVec<[Reg; 4]> = sums.iter().map(|&s| b.cast(dtype, s)).collect();
        let value = match lanes[..] {
            [one] => one,
            _ => b.inst(RegType { dtype, lanes: own.width as u8 }, Inst::Pack(lanes)),
        };
        let w = b.index(own.width as i64);
        let first = b.binary(Binary::Mul, number, w);
        b.store(table, first, 0, value);
    }

    /// Every thread looks at all rows.
    fn scan(&self) -> Launch {
        let (mut d, number) = Draft::new(self.name.clone(), self.units());
        let (at, rows, table) = (self.positions(&mut d), self.added(&mut d), self.result(&mut d));
        d.below(number, self.units(), |d| {
            let b = &mut d.b;
            let own = self.own(b, number);
            let (zero, end) = (b.index(0), b.index(self.count as i64));
            let sums = self.zeros(b, own.width);
            let each = b.open_loop(zero, end, 1, &sums);
            let before: Vec<Reg> = each.args().collect();
            let key = self.key(b, at, each.var());
            let mine = b.compare(Compare::Eq, key, own.row);
            b.open_block();
            let after = self.add(b, rows, &own, each.var(), &before);
            let then = b.take_block();
            let next = b.conditional(mine, (then, &after), (Default::default(), &before));
            let sums = b.close_loop(each, &next);
            self.store(b, table, &own, number, &sums);
        });
        d.finish()
    }

    /// Type of the lists' elements, which holds the number of every row and the end of the table.
    fn listed(&self) -> DType {
        let most = self.count.max(self.table.shape[0]);
        if i32::try_from(most).is_ok() { DType::I32 } else { DType::I64 }
    }

    fn list(&self, d: &mut Draft, at: usize, access: Access) -> Place {
        d.param(Argument::Workspace(at), self.listed(), self.count, access)
    }

    /// Row `i` counts the rows before it in the order, and so knows its place there.
    fn sort(&self, lists: Lists) -> Launch {
        let (mut d, number) = Draft::new(format!("{}_order", self.name), self.count);
        let at = self.positions(&mut d);
        let keys = self.list(&mut d, lists.keys, Access::Write);
        let order = self.list(&mut d, lists.order, Access::Write);
        d.below(number, self.count, |d| {
            let b = &mut d.b;
            let key = self.key(b, at, number);
            let (zero, end, one) = (b.index(0), b.index(self.count as i64), b.index(1));
            // Up to the row itself equal keys come before it, from there on they do not.
            let mut place = zero;
            for (from, to, before) in [(zero, number, Compare::Le), (number, end, Compare::Lt)] {
                let each = b.open_loop(from, to, 1, &[place]);
                let so_far = each.args().next().expect("one value is carried");
                let other = self.key(b, at, each.var());
                let counts = b.compare(before, other, key);
                let more = b.binary(Binary::Add, so_far, one);
                let next = b.select(counts, more, so_far);
                place = b.close_loop(each, &[next])[0];
            }
            let (key, row) = (b.cast(self.listed(), key), b.cast(self.listed(), number));
            b.store(keys, place, 0, key);
            b.store(order, place, 0, row);
        });
        d.finish()
    }

    /// Number of keys below `key`.
    fn bisect(&self, b: &mut Builder, keys: Place, key: Reg) -> Reg {
        let (begin, end, one, two) = (b.index(0), b.index(self.count as i64), b.index(1), b.index(2));
        let steps = b.index(i64::from(self.count.ilog2()) + 1);
        let search = b.open_loop(begin, steps, 1, &[begin, end]);
        let ends: Vec<Reg> = search.args().collect();
        let (low, high) = (ends[0], ends[1]);
        let open = b.compare(Compare::Lt, low, high);
        let sum = b.binary(Binary::Add, low, high);
        let middle = b.binary(Binary::FloorDiv, sum, two);
        let last = b.index(self.count as i64 - 1);
        let probe = b.binary(Binary::Min, middle, last);
        let found = b.load(keys, probe, 0, 1);
        let found = b.cast(DType::I64, found);
        let below = b.compare(Compare::Lt, found, key);
        let after = b.binary(Binary::Add, middle, one);
        let up = b.select(below, after, low);
        let down = b.select(below, high, middle);
        let next = [b.select(open, up, low), b.select(open, down, high)];
        b.close_loop(search, &next)[0]
    }

    /// Every thread finds the rows of its element in the order and adds them up.
    fn segments(&self, lists: Lists) -> Launch {
        let (mut d, number) = Draft::new(self.name.clone(), self.units());
        let keys = self.list(&mut d, lists.keys, Access::Constant);
        let order = self.list(&mut d, lists.order, Access::Constant);
        let (rows, table) = (self.added(&mut d), self.result(&mut d));
        d.below(number, self.units(), |d| {
            let b = &mut d.b;
            let own = self.own(b, number);
            let one = b.index(1);
            let next = b.binary(Binary::Add, own.row, one);
            let (begin, end) = (self.bisect(b, keys, own.row), self.bisect(b, keys, next));
            let sums = self.zeros(b, own.width);
            let each = b.open_loop(begin, end, 1, &sums);
            let before: Vec<Reg> = each.args().collect();
            let i = b.load(order, each.var(), 0, 1);
            let i = b.cast(DType::I64, i);
            let after = self.add(b, rows, &own, i, &before);
            let sums = b.close_loop(each, &after);
            self.store(b, table, &own, number, &sums);
        });
        d.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx;
    use crate::schedule::gpu::harness;
    use intwain_ir::Tensor;
    use intwain_ir::interp::Alone;
    use intwain_ir::ops::{Op, ScatterAdd};

    fn positions(dtype: DType, shape: &[usize], f: impl Fn(usize) -> i64) -> Tensor {
        let ty = Type::new(dtype, shape.to_vec());
        let at: Vec<Scalar> = (0..ty.shape.elements()).map(|i| Scalar::from_i64(dtype, f(i))).collect();
        Tensor::from_scalars(ty, &at)
    }

    fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
        let ty = Type::new(dtype, shape.to_vec());
        let x = |i: usize| ((i * 7919 + 13) % 2003) as f64 / 17.0 - 58.0;
        let x: Vec<Scalar> = (0..ty.shape.elements()).map(|i| Scalar::from_f64(dtype, x(i))).collect();
        Tensor::from_scalars(ty, &x)
    }

    fn check(at: &Tensor, rows: &Tensor, n: usize, base: i64) -> GpuKernel {
        let op = Op::from(ScatterAdd { rows: n, base });
        let table = op.infer(&[&at.ty, &rows.ty]).unwrap().remove(0);
        let want = op.eval(&[at, rows], std::slice::from_ref(&table), &mut Alone).unwrap();
        let kernel = Gpu::default().scatter_add("embedding", &at.ty, &rows.ty, &table, base);
        let got = harness::run(&kernel, &[at, rows], &[&table]);
        assert_eq!(got.results, want, "{} of {} to {n} rows from {base} on", at.ty, rows.ty);
        kernel
    }

    /// Positions repeat, some lie outside on both sides; sums of floats show the order.
    #[test]
    fn rows_are_added_in_order() {
        let spread = |n: usize| move |i: usize| (i * i + 3 * i) as i64 % (n as i64 + 4) - 2;
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::I8] {
            for (ids, n) in [(1, 1), (5, 3), (64, 10), (65, 10), (200, 7), (300, 1000)] {
                for columns in [1, 3, 4, 8, 10] {
                    check(&positions(DType::I32, &[ids], spread(n)), &numbers(dtype, &[ids, columns]), n, 0);
                }
            }
        }
    }

    #[test]
    fn parts_of_tables_have_a_base() {
        for (ids, kind) in [(30, DType::I64), (130, DType::U32), (130, DType::I8)] {
            for base in [0, 3, 90] {
                let at = positions(kind, &[ids], |i| (i * 5 % 101) as i64);
                check(&at, &numbers(DType::F32, &[ids, 6]), 20, base);
            }
        }
        let far = positions(DType::I64, &[100], |i| [i64::MIN, i64::MAX, -1, 1 << 32, 4][i % 5]);
        check(&far, &numbers(DType::F32, &[100, 2]), 5, 0);
    }

    #[test]
    fn shapes_of_any_rank() {
        let at = positions(DType::I32, &[9, 11], |i| (i % 13) as i64);
        check(&at, &numbers(DType::F32, &[9, 11, 2, 3]), 13, 0);
        check(&at, &numbers(DType::F32, &[9, 11]), 13, 0);
        check(&positions(DType::I32, &[], |_| 2), &numbers(DType::F32, &[4]), 3, 0);
        check(&positions(DType::I32, &[0], |_| 0), &numbers(DType::F32, &[0, 4]), 3, 0);
        let nothing = check(&positions(DType::I32, &[5], |_| 0), &numbers(DType::F32, &[5, 0]), 3, 0);
        assert!(nothing.launches.is_empty());
        // All in one row: the longest chain.
        check(&positions(DType::I32, &[500], |_| 1), &numbers(DType::F32, &[500, 16]), 2, 0);
    }

    #[test]
    fn accesses_are_wide() {
        let at = positions(DType::I32, &[70], |i| i as i64);
        let kernel = check(&at, &numbers(DType::F32, &[70, 8]), 70, 0);
        let text = ptx::module(&[&kernel.launches[1].kernel]).unwrap();
        assert!(text.contains("ld.global.nc.v4.f32") && text.contains("st.global.v4.f32"), "{text}");
    }
}
