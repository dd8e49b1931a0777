//! Resolves names and types: syntax to a [`Program`] of decoded instructions.

use std::collections::{BTreeMap, HashMap};

use crate::error::{ParseError, Problem};
use crate::lex::syntax;
use crate::lower_memory::window;
use crate::op::{Address, Class, Inst, Op, Order, Reg, Space};
use crate::regs::Regs;
use crate::syntax::{Entry, Item, Operand, Statement, Variable, unsupported};
use crate::types::{Kind, Ty};

/// Values that differ from warp to warp or lane to lane (PTX ISA 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    LaneMask {
        below: bool,
        equal: bool,
        above: bool,
    },
    DynamicShared,
    /// The address of a `.global` variable of the module.
    Variable(u32),
}

/// A parameter's place in the parameter block.
#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A kernel ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    /// Registers before the first instruction: immediates filled in, the rest without values.
    pub(crate) template: Regs,
    pub(crate) specials: Vec<(Special, Reg)>,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u64,
    /// Static shared memory, padded to where the dynamic part begins.
    pub(crate) shared_bytes: u64,
    pub(crate) local_bytes: u64,
    pub(crate) consts: Vec<u8>,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) exact_threads: Option<[u32; 3]>,
    /// Bytes of the smallest access that may touch shared memory: the granule of the race check.
    pub(crate) granule: u32,
    /// Blocks cannot learn of each other: no atomics, no ordered accesses, no fences.
    pub(crate) independent: bool,
}

#[derive(Debug, Clone)]
enum Symbol {
    Register(Ty, Reg),
    Family(Ty, u32),
    Variable(Space, u64),
    /// A `.global` variable of the module, whose address the launch knows.
    Module(u32),
}

/// State of lowering one kernel.
pub(crate) struct Lower {
    scopes: Vec<HashMap<String, Symbol>>,
    immediates: BTreeMap<(bool, u64), Reg>,
    specials: BTreeMap<Special, Reg>,
    labels: HashMap<String, u32>,
    branches: Vec<(usize, String, u32)>,
    pub(crate) program: Program,
    guard: Option<(u32, bool)>,
    opcode: String,
    line: u32,
}

/// Bytes of parameters that a kernel may have (PTX ISA 5.1.6).
const MAX_PARAMS: u64 = 32_764;
/// Bytes of local memory that a thread may have.
const MAX_LOCAL: u64 = 512 << 10;

/// Names and offsets.
type Places = Vec<(String, u64)>;

/// Lays the module's constants out; shared by all kernels.
fn constants(variables: &[Variable]) -> Result<(Vec<u8>, Places), ParseError> {
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    for v in variables.iter().filter(|v| v.space == "const") {
        let at = (bytes.len() as u64).next_multiple_of(v.align);
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&v.init);
        bytes.resize((at + v.bytes) as usize, 0);
        if bytes.len() > 1 << 16 {
            return Err(syntax(v.line, "more than 64 KiB of constants"));
        }
        places.push((v.name.clone(), at));
    }
    Ok((bytes, places))
}

/// Lowers one kernel of a module.
pub(crate) fn lower(entry: &Entry, variables: &[Variable]) -> Result<Program, ParseError> {
    let (consts, places) = constants(variables)?;
    let program = Program {
        name: entry.name.clone(),
        code: Vec::new(),
        template: Regs::new(),
        specials: Vec::new(),
        params: Vec::new(),
        param_bytes: 0,
        shared_bytes: 0,
        local_bytes: 0,
        consts,
        max_threads: entry.max_threads,
        exact_threads: entry.exact_threads,
        granule: 4,
        independent: true,
    };
    let mut l = Lower {
        scopes: vec![HashMap::new()],
        immediates: BTreeMap::new(),
        specials: BTreeMap::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        program,
        guard: None,
        opcode: String::new(),
        line: 0,
    };
    for (name, at) in places {
        l.scopes[0].insert(name, Symbol::Variable(Space::Const, at));
    }
    for v in &entry.params {
        let at = l.program.param_bytes.next_multiple_of(v.align);
        l.program.params.push(Param { offset: at, bytes: v.bytes });
        l.program.param_bytes = at + v.bytes;
        l.scopes[0].insert(v.name.clone(), Symbol::Variable(Space::Param, at));
    }
    if l.program.param_bytes > MAX_PARAMS {
        let reason = format!("{} bytes of parameters are more than {MAX_PARAMS}", l.program.param_bytes);
        return Err(syntax(entry.params[0].line, reason));
    }
    // Static variables come first whatever the order of declaration; the dynamic part follows them all.
    let local = entry.body.iter().filter_map(|i| if let Item::Variable(v) = i { Some(v) } else { None });
    let shared: Vec<&Variable> = variables.iter().chain(local).filter(|v| v.space == "shared").collect();
    for v in shared.iter().filter(|v| !v.dynamic).chain(shared.iter().filter(|v| v.dynamic)) {
        let at = l.program.shared_bytes.next_multiple_of(v.align);
        l.program.shared_bytes = at + v.bytes;
        l.scopes[0].insert(v.name.clone(), Symbol::Variable(Space::Shared, at));
    }
    for (index, v) in variables.iter().filter(|v| v.space == "global").enumerate() {
        l.scopes[0].insert(v.name.clone(), Symbol::Module(index as u32));
    }
    for item in &entry.body {
        l.item(item)?;
    }
    l.line = 0;
    l.guard = None;
    l.push(Op::Exit);
    for (at, label, line) in std::mem::take(&mut l.branches) {
        let target = l.labels.get(&label).copied();
        let target = target.ok_or(ParseError { line, problem: Problem::Undeclared(label) })?;
        l.program.code[at].op = Op::Branch { target };
    }
    l.program.independent = l.program.code.iter().all(|inst| match &inst.op {
        Op::Load(a) | Op::Store(a) => a.order == Order::Weak,
        op => !matches!(op, Op::Atom(_) | Op::Fence { .. }),
    });
    l.program.specials = l.specials.into_iter().collect();
    Ok(l.program)
}

impl Lower {
    fn item(&mut self, item: &Item) -> Result<(), ParseError> {
        match item {
            Item::Open => self.scopes.push(HashMap::new()),
            Item::Close => {
                self.scopes.pop();
            }
            Item::Label(name, line) => {
                if self.labels.insert(name.clone(), self.program.code.len() as u32).is_some() {
                    return Err(syntax(*line, format!("label `{name}` is declared twice")));
                }
            }
            Item::Registers { ty, name, count, line } => {
                let symbol = match count {
                    Some(count) => Symbol::Family(*ty, *count),
                    None => Symbol::Register(*ty, self.fresh(*ty)),
                };
                let scope = self.scopes.last_mut().expect("the kernel's own scope is never closed");
                if scope.insert(name.clone(), symbol).is_some() {
                    return Err(syntax(*line, format!("`{name}` is declared twice")));
                }
            }
            Item::Variable(v) => match v.space.as_str() {
                "local" => {
                    let at = self.program.local_bytes.next_multiple_of(v.align);
                    self.program.local_bytes = at + v.bytes;
                    if self.program.local_bytes > MAX_LOCAL {
                        return Err(syntax(v.line, format!("more than {MAX_LOCAL} bytes of local memory")));
                    }
                    let scope = self.scopes.last_mut().expect("the kernel's own scope is never closed");
                    scope.insert(v.name.clone(), Symbol::Variable(Space::Local, at));
                }
                "shared" => {}
                space => return Err(unsupported(v.line, &format!(".{space} {}", v.name), "inside a kernel", "5.1")),
            },
            Item::Statement(s) => self.statement(s)?,
        }
        Ok(())
    }

    fn statement(&mut self, s: &Statement) -> Result<(), ParseError> {
        self.line = s.line;
        self.opcode.clone_from(&s.opcode);
        self.guard = None;
        if let Some((name, negated)) = &s.guard {
            self.guard = Some((self.register(name, Ty::PRED)?.slot, *negated));
        }
        let mut code = Code::new(&s.opcode, s.line);
        if !(self.control(&mut code, &s.operands)?
            || self.memory(&mut code, &s.operands)?
            || self.alu(&mut code, &s.operands)?)
        {
            return Err(code.refuse("no such instruction is known", "9.7"));
        }
        code.finish()
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.program.code.push(Inst { line: self.line, guard: self.guard, op });
    }

    /// A branch to a label that may come later.
    pub(crate) fn branch(&mut self, label: &str) {
        self.branches.push((self.program.code.len(), label.to_owned(), self.line));
        self.push(Op::Branch { target: 0 });
    }

    pub(crate) fn fresh(&mut self, ty: Ty) -> Reg {
        self.program.template.fresh(class(ty))
    }

    fn symbol(&mut self, name: &str) -> Option<Symbol> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = name[stem.len()..].parse().ok();
        for scope in self.scopes.iter_mut().rev() {
            if let Some(symbol) = scope.get(name) {
                return Some(symbol.clone());
            }
            if let (Some(Symbol::Family(ty, count)), Some(number)) = (scope.get(stem), number)
                && number < *count
            {
                let symbol = Symbol::Register(*ty, self.program.template.fresh(class(*ty)));
                scope.insert(name.to_owned(), symbol.clone());
                return Some(symbol);
            }
        }
        None
    }

    pub(crate) fn wrong(&self, message: String) -> ParseError {
        syntax(self.line, message)
    }

    fn undeclared(&self, name: &str) -> ParseError {
        ParseError { line: self.line, problem: Problem::Undeclared(name.to_owned()) }
    }

    fn mismatch(&self, operand: &str, found: Ty, wanted: Ty) -> ParseError {
        let (found, wanted) = (found.name(), wanted.name());
        let problem = Problem::Operand { instruction: self.opcode.clone(), operand: operand.to_owned(), found, wanted };
        ParseError { line: self.line, problem }
    }

    /// A register and its declared type.
    pub(crate) fn typed(&mut self, name: &str) -> Result<(Ty, Reg), ParseError> {
        match self.symbol(name) {
            Some(Symbol::Register(ty, reg)) => Ok((ty, reg)),
            Some(_) => Err(syntax(self.line, format!("`{name}` is not a register"))),
            None => Err(self.undeclared(name)),
        }
    }

    /// A register of a type that fits `ty`.
    pub(crate) fn register(&mut self, name: &str, ty: Ty) -> Result<Reg, ParseError> {
        let (found, reg) = self.typed(name)?;
        if found.fits(ty) { Ok(reg) } else { Err(self.mismatch(name, found, ty)) }
    }

    /// A destination register of exactly the instruction's type.
    pub(crate) fn dest(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => self.register(name, ty),
            _ => Err(syntax(self.line, "the destination must be a register")),
        }
    }

    /// A destination or source register that may be wider than the type (PTX ISA 9.4.1), with its width.
    pub(crate) fn wider(&mut self, operand: &Operand, ty: Ty) -> Result<(Reg, u32), ParseError> {
        let Operand::Name(name) = operand else { return Err(syntax(self.line, "expected a register")) };
        let (found, reg) = self.typed(name)?;
        if found.width() < ty.width() || (found.kind == Kind::Pred) != (ty.kind == Kind::Pred) {
            return Err(self.mismatch(name, found, ty));
        }
        Ok((reg, found.width()))
    }

    /// A source operand: register, literal, special register or the address of a variable.
    pub(crate) fn source(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => {
                if let Some(reg) = self.special(name)? {
                    return if ty.width() == 32 { Ok(reg) } else { Err(self.mismatch(name, Ty::U32, ty)) };
                }
                match self.symbol(name) {
                    Some(Symbol::Variable(_, at)) => Ok(self.immediate(at, ty)),
                    Some(Symbol::Module(index)) if ty.width() == 64 => Ok(self.value(Special::Variable(index))),
                    Some(Symbol::Module(_)) => Err(self.mismatch(name, Ty::U64, ty)),
                    _ => self.register(name, ty),
                }
            }
            &Operand::Int(_) if ty.is_float() && !ty.packed => {
                Err(syntax(self.line, "an integer literal where a floating-point one is needed"))
            }
            &Operand::Int(v) => Ok(self.immediate(v, ty)),
            &Operand::F32(v) if ty.width() == 32 => Ok(self.immediate(u64::from(v), ty)),
            &Operand::F64(v) if ty == Ty::F32 => {
                Ok(self.immediate(u64::from((f64::from_bits(v) as f32).to_bits()), ty))
            }
            &Operand::F64(v) if ty.width() == 64 => Ok(self.immediate(v, ty)),
            _ => Err(syntax(self.line, format!("an operand that does not fit {}", ty.name()))),
        }
    }

    /// A source that may be wider than its type, as `st` and `cvt` take.
    pub(crate) fn wide_source(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => match self.special(name)? {
                Some(reg) if ty.width() <= 32 => Ok(reg),
                Some(_) => Err(self.mismatch(name, Ty::U32, ty)),
                None => self.wider(operand, ty).map(|r| r.0),
            },
            _ => self.source(operand, ty),
        }
    }

    pub(crate) fn immediate(&mut self, v: u64, ty: Ty) -> Reg {
        let v = crate::scalar::keep(v, ty.width());
        let class = class(ty);
        if let Some(&reg) = self.immediates.get(&(class == Class::W64, v)).filter(|r| r.class == class) {
            return reg;
        }
        let reg = self.program.template.fresh(class);
        self.program.template.fill(reg, |_| v);
        self.immediates.insert((class == Class::W64, v), reg);
        reg
    }

    fn special(&mut self, name: &str) -> Result<Option<Reg>, ParseError> {
        let Some(special) = special(name) else {
            if ["%clock", "%smid", "%nsmid", "%globaltimer", "%envreg", "%pm", "%cluster", "%is_"]
                .iter()
                .any(|p| name.starts_with(p))
            {
                return Err(unsupported(self.line, name, "special register as an operand", "10"));
            }
            return Ok(None);
        };
        Ok(Some(self.value(special)))
    }

    /// The register that holds a special value.
    fn value(&mut self, special: Special) -> Reg {
        let class = if matches!(special, Special::Variable(_)) { Class::W64 } else { Class::W32 };
        *self.specials.entry(special).or_insert_with(|| self.program.template.fresh(class))
    }

    /// A predicate, perhaps negated.
    pub(crate) fn predicate(&mut self, operand: &Operand) -> Result<(u32, bool), ParseError> {
        match operand {
            Operand::Name(name) => Ok((self.register(name, Ty::PRED)?.slot, false)),
            Operand::Not(name) => Ok((self.register(name, Ty::PRED)?.slot, true)),
            Operand::Int(v) => {
                let reg = self.program.template.fresh(Class::Pred);
                self.program.template.fill(reg, |_| v & 1);
                Ok((reg.slot, false))
            }
            _ => Err(syntax(self.line, "expected a predicate")),
        }
    }

    /// An address that an instruction accesses in `space`.
    pub(crate) fn address(&mut self, operand: &Operand, space: Space) -> Result<Address, ParseError> {
        let Operand::Address(base, offset) = operand else {
            return Err(syntax(self.line, "expected an address in brackets"));
        };
        let Some(name) = base else { return Ok(Address { base: None, offset: *offset }) };
        match self.symbol(name) {
            Some(Symbol::Variable(found, at)) if found == space || space == Space::Generic => {
                let base = if space == Space::Generic { window(found) } else { 0 };
                Ok(Address { base: None, offset: offset.wrapping_add(at.wrapping_add(base) as i64) })
            }
            Some(Symbol::Module(index)) if matches!(space, Space::Global | Space::Generic) => {
                Ok(Address { base: Some(self.value(Special::Variable(index))), offset: *offset })
            }
            Some(Symbol::Module(_)) => Err(syntax(self.line, format!("`{name}` lies in another state space"))),
            Some(Symbol::Variable(..)) => Err(syntax(self.line, format!("`{name}` lies in another state space"))),
            Some(Symbol::Register(ty, reg)) if matches!(ty.bits, 32 | 64) => {
                Ok(Address { base: Some(reg), offset: *offset })
            }
            Some(_) => Err(syntax(self.line, format!("`{name}` is no address"))),
            None => Err(self.undeclared(name)),
        }
    }

    /// The elements of a vector operand, or the operand itself.
    pub(crate) fn elements(operand: &Operand) -> &[Operand] {
        match operand {
            Operand::Vector(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }
}

fn class(ty: Ty) -> Class {
    match ty.width() {
        1 => Class::Pred,
        64 => Class::W64,
        _ => Class::W32,
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        _ => None,
    };
    let mask = |below, equal, above| Some(Special::LaneMask { below, equal, above });
    match name {
        "%laneid" => Some(Special::LaneId),
        "%warpid" => Some(Special::WarpId),
        "%nwarpid" => Some(Special::WarpCount),
        "%lanemask_lt" => mask(true, false, false),
        "%lanemask_le" => mask(true, true, false),
        "%lanemask_eq" => mask(false, true, false),
        "%lanemask_ge" => mask(false, true, true),
        "%lanemask_gt" => mask(false, false, true),
        "%dynamic_smem_size" => Some(Special::DynamicShared),
        _ => None,
    }
    .or_else(|| name.strip_prefix("%tid").and_then(axis).map(Special::Tid))
    .or_else(|| name.strip_prefix("%ntid").and_then(axis).map(Special::Ntid))
    .or_else(|| name.strip_prefix("%ctaid").and_then(axis).map(Special::Ctaid))
    .or_else(|| name.strip_prefix("%nctaid").and_then(axis).map(Special::Nctaid))
}

/// An opcode with its modifiers; each must be used exactly once by the lowering, or it is refused.
pub(crate) struct Code<'a> {
    pub(crate) full: &'a str,
    pub(crate) name: &'a str,
    mods: Vec<(&'a str, bool)>,
    line: u32,
}

impl<'a> Code<'a> {
    fn new(full: &'a str, line: u32) -> Self {
        let mut parts = full.split('.');
        let name = parts.next().unwrap_or_default();
        Code { full, name, mods: parts.map(|m| (m, false)).collect(), line }
    }

    /// Whether the modifier is there; uses it.
    pub(crate) fn take(&mut self, modifier: &str) -> bool {
        let found = self.mods.iter_mut().find(|m| m.0 == modifier && !m.1);
        found.map(|m| m.1 = true).is_some()
    }

    /// The first modifier that `f` knows; uses it.
    pub(crate) fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = self.mods.iter_mut().filter(|m| !m.1).find_map(|m| f(m.0).map(|v| (m, v)));
        found.map(|(m, v)| {
            m.1 = true;
            v
        })
    }

    /// The next type among the modifiers.
    pub(crate) fn ty(&mut self) -> Result<Ty, ParseError> {
        let ty = self.take_map(Ty::parse);
        ty.ok_or_else(|| syntax(self.line, format!("`{}` has no type", self.full)))
    }

    pub(crate) fn refuse(&self, reason: &str, section: &'static str) -> ParseError {
        unsupported(self.line, self.full, reason, section)
    }

    /// The operands, if there are exactly `N`.
    pub(crate) fn operands<'o, const N: usize>(&self, operands: &'o [Operand]) -> Result<&'o [Operand; N], ParseError> {
        let n = operands.len();
        operands.try_into().map_err(|_| syntax(self.line, format!("`{}` takes {N} operands, found {n}", self.full)))
    }

    fn finish(&self) -> Result<(), ParseError> {
        match self.mods.iter().find(|m| !m.1) {
            Some((modifier, _)) => Err(self.refuse(&format!("modifier .{modifier}"), "9.7")),
            None => Ok(()),
        }
    }
}
