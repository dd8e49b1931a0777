//! Communication as data: what a device packs for the other, and what it makes of its own operand and of what arrives.
//!
//! A device of a pair sends at most one message and receives at most one. [`Messages`] says as Computes what stands in
//! the message and in the result, so every target executes communication by moving bytes and scheduling Computes. Where
//! operands are combined they stand in the order of the devices, so both devices get the same bits.

use crate::compute::{Compute, Expr, ExprId};
use crate::{Type, scalar};

/// What a communication is to one of two devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Messages {
    /// Number of the communication.
    pub channel: usize,
    /// The other device.
    pub peer: usize,
    /// The message to the peer, made from the operand; `None` if it has no elements.
    pub outgoing: Option<Piece>,
    /// Type of the peer's message; `None` if it has no elements.
    pub incoming: Option<Type>,
    /// What fills the result. Pieces do not overlap; those without elements are left out.
    pub result: Vec<Piece>,
}

/// Neighbouring elements of a tensor, computed from the operands [`Messages::OWN`] and [`Messages::MESSAGE`].
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What is computed, one value per element.
    pub compute: Compute,
    /// Type of the piece.
    pub ty: Type,
    /// Position of its first element in the tensor.
    pub start: Vec<usize>,
}

impl Messages {
    /// The Computes' operand that is the communication's own.
    pub const OWN: usize = 0;
    /// The Computes' operand that is the peer's message.
    pub const MESSAGE: usize = 1;

    /// Without messages yet.
    fn new(channel: usize, peer: usize) -> Messages {
        Messages { channel, peer, outgoing: None, incoming: None, result: Vec::new() }
    }

    /// Among `devices`, if they are two.
    pub(crate) fn pair(channel: usize, device: usize, devices: usize) -> Option<Messages> {
        (devices == 2 && device < 2).then(|| Messages::new(channel, 1 - device))
    }

    /// To a device.
    pub(crate) fn to(channel: usize, peer: usize, operand: &Type) -> Messages {
        Messages::new(channel, peer).sending(Piece::copy(Messages::OWN, operand))
    }

    /// From a device.
    pub(crate) fn from(channel: usize, peer: usize, result: &Type) -> Messages {
        let whole = Piece::copy(Messages::MESSAGE, result);
        Messages::new(channel, peer).receiving(result.clone()).filling(whole)
    }

    pub(crate) fn sending(mut self, piece: Piece) -> Messages {
        self.outgoing = Some(piece).filter(Piece::has_elements);
        self
    }

    pub(crate) fn receiving(mut self, ty: Type) -> Messages {
        self.incoming = Some(ty).filter(|t| t.shape.elements() > 0);
        self
    }

    pub(crate) fn filling(mut self, piece: Piece) -> Messages {
        self.result.extend(Some(piece).filter(Piece::has_elements));
        self
    }
}

impl Piece {
    /// Whether it needs the peer's message.
    pub fn reads_message(&self) -> bool {
        let reads = |e: &Expr| matches!(e, Expr::Load { operand, .. } if *operand == Messages::MESSAGE);
        self.compute.exprs().any(|(_, e)| reads(e))
    }

    fn has_elements(&self) -> bool {
        self.ty.shape.elements() > 0
    }

    /// All of an operand.
    pub(crate) fn copy(operand: usize, ty: &Type) -> Piece {
        let mut compute = Compute::new(&ty.shape);
        let at = compute.position();
        let x = compute.load(operand, ty, at);
        Piece { compute: compute.with_results([x]), ty: ty.clone(), start: vec![0; ty.rank()] }
    }

    /// The part of the own operand that belongs to a device when `dim` is divided.
    pub(crate) fn part(of: &Type, dim: usize, sizes: &[usize], device: usize) -> Piece {
        let ty = of.with_shape(of.shape.with(dim, sizes[device]));
        let mut compute = Compute::new(&ty.shape);
        let x = Piece::load_part(&mut compute, of, dim, sizes, device);
        Piece { compute: compute.with_results([x]), start: vec![0; ty.rank()], ty }
    }

    fn load_part(compute: &mut Compute, of: &Type, dim: usize, sizes: &[usize], device: usize) -> ExprId {
        let mut at = compute.position();
        at[dim] = at[dim].clone().plus(sizes[..device].iter().sum::<usize>() as i64);
        compute.load(Messages::OWN, of, at)
    }

    /// The combination of a part of the own operand (all of it without `parts`) and a message of the same type, in the
    /// order of the devices.
    pub(crate) fn combined(
        function: scalar::Reduce,
        of: &Type,
        parts: Option<(usize, &[usize])>,
        device: usize,
    ) -> Piece {
        let ty = match parts {
            Some((dim, sizes)) => of.with_shape(of.shape.with(dim, sizes[device])),
            None => of.clone(),
        };
        let mut compute = Compute::new(&ty.shape);
        let at = compute.position();
        let theirs = compute.load(Messages::MESSAGE, &ty, at.clone());
        let own = match parts {
            Some((dim, sizes)) => Piece::load_part(&mut compute, of, dim, sizes, device),
            None => compute.load(Messages::OWN, of, at),
        };
        let (first, second) = if device == 0 { (own, theirs) } else { (theirs, own) };
        let x = compute.binary(function.combine(), first, second);
        Piece { compute: compute.with_results([x]), start: vec![0; ty.rank()], ty }
    }

    /// The same piece as a device's part of the tensor when `dim` is divided.
    pub(crate) fn placed(mut self, dim: usize, sizes: &[usize], device: usize) -> Piece {
        self.start[dim] = sizes[..device].iter().sum();
        self
    }
}
