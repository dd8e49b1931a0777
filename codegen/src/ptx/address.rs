//! Addresses: a base register and a constant displacement.

use super::SHARED;
use super::emit::Emitter;
use super::text::{Class, Text, Value, int, long};
use intwain_ir::DType;
use intwain_ir::kernel::{Inst, Kernel, Place, Reg};
use intwain_ir::scalar::Binary;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// What stands in brackets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Address {
    /// A register and a displacement.
    Based(Value, i64),
    /// A byte of shared memory.
    Shared(i64),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Address::Based(base, 0) => write!(f, "[{base}]"),
            Address::Based(base, at) => write!(f, "[{base}+{at}]"),
            Address::Shared(0) => write!(f, "[{SHARED}]"),
            Address::Shared(at) => write!(f, "[{SHARED}+{at}]"),
        }
    }
}

impl Address {
    /// The registers read.
    pub(super) fn uses(self) -> SmallVec<[Value; 4]> {
        self.with(&[])
    }

    /// The registers read, and others.
    pub(super) fn with(self, others: &[Value]) -> SmallVec<[Value; 4]> {
        let mut all = SmallVec::from_slice(others);
        match self {
            Address::Based(base, _) => all.push(base),
            Address::Shared(_) => {}
        }
        all
    }

    /// The address some bytes on.
    pub(super) fn plus(self, bytes: i64) -> Address {
        match self {
            Address::Based(base, at) => Address::Based(base, at + bytes),
            Address::Shared(at) => Address::Shared(at + bytes),
        }
    }
}

/// Addresses computed so far, by scope.
#[derive(Debug)]
pub(super) struct Addresses {
    params: BTreeMap<u32, Value>,
    shared: Option<Value>,
    offsets: Vec<usize>,
    scopes: Vec<HashMap<(Place, Reg), Value>>,
    /// Registers that the innermost block defined.
    local: Vec<HashSet<Reg>>,
    /// Registers that are another one plus a constant.
    sums: HashMap<Reg, (Reg, i64)>,
    constants: HashMap<Reg, i64>,
    /// Sums of multiples of registers that others are, with a constant.
    forms: HashMap<Reg, (Terms, i64)>,
    /// The first register with such a sum, and its constant, by scope.
    first: Vec<HashMap<Terms, (Reg, i64)>>,
}

/// Multiples of registers, in order, each once.
type Terms = SmallVec<[(Reg, i64); 4]>;

/// Sums longer than this are not looked through.
const TERMS: usize = 6;

fn sum(x: &Terms, y: &Terms, factor: i64) -> Option<Terms> {
    let mut all: BTreeMap<Reg, i64> = x.iter().copied().collect();
    for (r, k) in y {
        let term = all.entry(*r).or_default();
        *term = term.checked_add(k.checked_mul(factor)?)?;
    }
    all.retain(|_, k| *k != 0);
    (1..=TERMS).contains(&all.len()).then(|| all.into_iter().collect())
}

impl Addresses {
    pub(super) fn new(kernel: &Kernel) -> Addresses {
        Addresses {
            params: BTreeMap::new(),
            shared: None,
            offsets: kernel.buffer_offsets().0,
            scopes: Vec::new(),
            local: Vec::new(),
            sums: HashMap::new(),
            constants: HashMap::new(),
            forms: HashMap::new(),
            first: Vec::new(),
        }
    }

    fn form(&self, r: Reg) -> (Terms, i64) {
        self.forms.get(&r).cloned().unwrap_or_else(|| (SmallVec::from_elem((r, 1), 1), 0))
    }

    /// The sum that an instruction gives. The arithmetic is that of the integers: what overflows is left alone.
    fn form_of(&self, inst: &Inst) -> Option<(Terms, i64)> {
        let Inst::Binary(op, x, y) = inst else { return None };
        let times = |x: &Reg, c: i64| {
            let (terms, k) = self.form(*x);
            Some((sum(&Terms::new(), &terms, c)?, k.checked_mul(c)?))
        };
        match (op, self.constants.get(x), self.constants.get(y)) {
            (Binary::Add, None, Some(c)) => self.form(*x).1.checked_add(*c).map(|k| (self.form(*x).0, k)),
            (Binary::Add, Some(c), None) => self.form(*y).1.checked_add(*c).map(|k| (self.form(*y).0, k)),
            (Binary::Add, None, None) => {
                let ((a, k), (b, l)) = (self.form(*x), self.form(*y));
                Some((sum(&a, &b, 1)?, k.checked_add(l)?))
            }
            (Binary::Mul, None, Some(c)) => times(x, *c),
            (Binary::Mul, Some(c), None) => times(y, *c),
            _ => None,
        }
    }

    /// Finds out whether a register is one before it plus a constant.
    fn learn_form(&mut self, r: Reg, inst: &Inst) {
        let Some((terms, k)) = self.form_of(inst) else { return };
        if let Some((base, c)) = self.first.iter().rev().find_map(|s| s.get(&terms)).copied() {
            if let Some(more) = k.checked_sub(c).filter(|m| m.unsigned_abs() < 1 << 40) {
                self.sums.entry(r).or_insert((base, more));
            }
        } else if let Some(scope) = self.first.last_mut() {
            scope.insert(terms.clone(), (r, k));
        }
        self.forms.insert(r, (terms, k));
    }

    /// Remembers an instruction that later addresses may look through.
    pub(super) fn learn(&mut self, r: Reg, inst: &Inst) {
        match inst {
            Inst::Const(x) if x.dtype() == DType::I64 => {
                self.constants.insert(r, x.to_i64());
            }
            Inst::Binary(op @ (Binary::Add | Binary::Sub), x, y) => {
                let sum = match (op, self.constants.get(x), self.constants.get(y)) {
                    (Binary::Add, _, Some(c)) => Some((*x, *c)),
                    (Binary::Add, Some(c), _) => Some((*y, *c)),
                    (Binary::Sub, _, Some(c)) => Some((*x, c.wrapping_neg())),
                    _ => None,
                };
                if let Some(sum) = sum.filter(|s| s.1.unsigned_abs() < 1 << 40) {
                    self.sums.insert(r, sum);
                }
            }
            _ => {}
        }
        if matches!(inst, Inst::Binary(Binary::Add | Binary::Mul, ..)) {
            self.learn_form(r, inst);
        }
    }

    /// A block begins: what is computed in it isn't known after it.
    pub(super) fn enter(&mut self) {
        self.scopes.push(HashMap::new());
        self.local.push(HashSet::new());
        self.first.push(HashMap::new());
    }

    /// A block ends.
    pub(super) fn leave(&mut self) {
        self.scopes.pop();
        self.local.pop();
        self.first.pop();
    }

    /// A register is defined.
    pub(super) fn define(&mut self, r: Reg) {
        if let Some(local) = self.local.last_mut() {
            local.insert(r);
        }
    }

    fn is_local(&self, r: Reg) -> bool {
        self.local.last().is_some_and(|l| l.contains(&r))
    }

    fn find(&self, key: (Place, Reg)) -> Option<Value> {
        self.scopes.iter().rev().find_map(|s| s.get(&key)).copied()
    }

    /// What has to stand before the body.
    pub(super) fn prologue(&self, t: &mut Text) {
        for (i, v) in &self.params {
            t.pure(&[*v], &[], format_args!("ld.param.u64 {v}, [p{i}];"));
        }
        for v in self.params.values() {
            t.pure(&[*v], &[*v], format_args!("cvta.to.global.u64 {v}, {v};"));
        }
        if let Some(v) = self.shared {
            t.pure(&[v], &[], format_args!("mov.u32 {v}, {SHARED};"));
        }
    }
}

impl Emitter<'_> {
    fn param_base(&mut self, i: u32) -> Value {
        if let Some(v) = self.addresses.params.get(&i) {
            return *v;
        }
        let v = self.t.fresh(Class::Long);
        self.addresses.params.insert(i, v);
        v
    }

    fn shared_base(&mut self) -> Value {
        match self.addresses.shared {
            Some(v) => v,
            None => {
                let v = self.t.fresh(Class::Int);
                self.addresses.shared = Some(v);
                v
            }
        }
    }

    /// The address of an element.
    pub(super) fn address(&mut self, place: Place, mut index: Reg, mut offset: i64) -> Address {
        while let Some(&(base, c)) = self.addresses.sums.get(&index) {
            // Addresses of shared memory have 32 bits: what is added to must be one by itself.
            let lo = self.ranges.get(base).lo;
            if matches!(place, Place::Buffer(_)) && lo < 0 || offset.checked_add(c).is_none() {
                break;
            }
            (index, offset) = (base, offset + c);
        }
        let size = self.kernel.place(place).map_or(1, |p| p.0.size()) as i64;
        let start = match place {
            Place::Param(_) => 0,
            Place::Buffer(i) => self.addresses.offsets[i as usize] as i64,
        };
        let index_value = self.value(index);
        if let Some(c) = index_value.known() {
            let at = (c + offset) * size + start;
            return match place {
                Place::Param(i) => {
                    let base = self.param_base(i);
                    self.displaced(base, at)
                }
                Place::Buffer(_) => Address::Shared(at),
            };
        }
        let base = match self.addresses.find((place, index)) {
            Some(base) => base,
            None => self.new_base((place, index), index_value, size),
        };
        self.displaced(base, offset * size + start)
    }

    /// Computes the base of an address. Within a guard, what comes from outside is computed for all, so that what
    /// follows the guarded instructions can use it too.
    fn new_base(&mut self, key: (Place, Reg), index: Value, size: i64) -> Value {
        let scopes = self.addresses.scopes.len();
        let outside = self.t.guarded() && !self.addresses.is_local(key.1);
        let guard = if outside { self.t.guard(None) } else { None };
        let base = self.element_base(key.0, index, size);
        if outside {
            self.t.guard(guard);
        }
        let at = scopes - 1 - usize::from(outside);
        self.addresses.scopes[at].insert(key, base);
        base
    }

    /// The register that points to element `index` of a parameter, or past the buffer's start by that much.
    fn element_base(&mut self, place: Place, index: Value, size: i64) -> Value {
        match place {
            Place::Param(i) => {
                let base = self.param_base(i);
                if index.class() == Class::Int {
                    return self.t.op(Class::Long, "mad.wide.s32", &[index, int(size as i32), base]);
                }
                let bytes = match size {
                    1 => index,
                    _ => self.t.op(Class::Long, "shl.b64", &[index, int(size.ilog2() as i32)]),
                };
                self.t.op(Class::Long, "add.s64", &[base, bytes])
            }
            Place::Buffer(_) => {
                let base = self.shared_base();
                let index = self.fit(index, Class::Int);
                if size == 1 {
                    return self.t.op(Class::Int, "add.s32", &[base, index]);
                }
                self.t.op(Class::Int, "mad.lo.s32", &[index, int(size as i32), base])
            }
        }
    }

    /// Displacements have 32 bits; beyond, they are added.
    fn displaced(&mut self, base: Value, bytes: i64) -> Address {
        // The limit is that of the machine's instructions: 24 bits, signed.
        if (-(1 << 23)..1 << 23).contains(&bytes) || base.class() == Class::Int {
            return Address::Based(base, bytes);
        }
        Address::Based(self.t.op(Class::Long, "add.s64", &[base, long(bytes)]), 0)
    }
}
