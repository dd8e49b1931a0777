//! NumPy's `npy` format: header versions 1 to 3, both orders, both byte orders.
//!
//! The header is a Python dict literal with three known keys, so a parser for exactly that is all there is.
//! Strings, objects and records are recognised and never read: see [`Element::Other`].

use std::io::Read;

use intwain_ir::DType;

use super::{Array, ArrayErrorKind, Buffer};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses headers above 10,000 characters unless told otherwise.
const MAX_HEADER: usize = 1 << 16;

/// How the elements of an npy array are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// A type we hold as it is.
    Plain(DType),
    /// Unsigned 16-bit, widened to `i32`.
    U16,
    /// Unsigned 64-bit, narrowed to `i64` where the value allows.
    U64,
    /// Strings, objects, records, complex numbers: skipped unread.
    Other(String),
}

/// The parsed header of an npy array.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) element: Element,
    pub(crate) big_endian: bool,
    pub(crate) fortran: bool,
    pub(crate) shape: Vec<usize>,
}

fn damaged(why: impl Into<String>) -> ArrayErrorKind {
    ArrayErrorKind::Damaged { format: "npy", why: why.into() }
}

impl Header {
    /// Reads the header and leaves the reader at the first byte of data.
    pub(crate) fn read(reader: &mut impl Read) -> Result<Header, ArrayErrorKind> {
        let mut start = [0u8; 8];
        fill(reader, &mut start)?;
        if &start[..6] != MAGIC {
            return Err(damaged("it does not start with the npy magic bytes"));
        }
        let len = match start[6] {
            1 => {
                let mut len = [0u8; 2];
                fill(reader, &mut len)?;
                u16::from_le_bytes(len) as usize
            }
            2 | 3 => {
                let mut len = [0u8; 4];
                fill(reader, &mut len)?;
                u32::from_le_bytes(len) as usize
            }
            version => return Err(damaged(format!("header version {version}; 1, 2 and 3 are known"))),
        };
        if len > MAX_HEADER {
            return Err(damaged(format!("a header of {len} bytes")));
        }
        let mut text = vec![0u8; len];
        fill(reader, &mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        parse_header(&text).ok_or_else(|| damaged(format!("header `{}`", text.trim_end())))
    }

    pub(crate) fn element_size(&self) -> usize {
        match &self.element {
            Element::Plain(dtype) => dtype.size(),
            Element::U16 => 2,
            Element::U64 => 8,
            Element::Other(_) => 0,
        }
    }

    /// The dtype that reading gives, `None` for what is skipped.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match &self.element {
            Element::Plain(dtype) => Some(*dtype),
            Element::U16 => Some(DType::I32),
            Element::U64 => Some(DType::I64),
            Element::Other(_) => None,
        }
    }

    /// Reads the data that follows the header. Memory grows with the bytes that really come, not with what the shape promises.
    pub(crate) fn read_data(&self, reader: &mut impl Read) -> Result<Array, ArrayErrorKind> {
        if let Element::Other(dtype) = &self.element {
            return Err(ArrayErrorKind::Element { dtype: dtype.clone() });
        }
        let declared = self.shape.iter().map(|&d| d as u128).try_fold(self.element_size() as u128, u128::checked_mul);
        let declared = declared.unwrap_or(u128::MAX);
        let mut bytes = Vec::new();
        let limit = u64::try_from(declared).unwrap_or(u64::MAX);
        reader.take(limit).read_to_end(&mut bytes)?;
        if bytes.len() as u128 != declared {
            return Err(ArrayErrorKind::Short { declared, present: bytes.len() as u64 });
        }
        if self.fortran {
            bytes = to_row_major(&bytes, &self.shape, self.element_size());
        }
        let (dtype, bytes) = self.decode(bytes)?;
        Ok(Array { dtype, shape: self.shape.clone(), data: Buffer::from_bytes(&bytes) })
    }

    /// Elements as we hold them, in the order in which they are given.
    pub(crate) fn decode(&self, mut bytes: Vec<u8>) -> Result<(DType, Vec<u8>), ArrayErrorKind> {
        let size = self.element_size();
        if self.big_endian && size > 1 {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(match &self.element {
            Element::Plain(DType::Bool) => {
                bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
                (DType::Bool, bytes)
            }
            Element::Plain(dtype) => (*dtype, bytes),
            Element::U16 => {
                let wide =
                    bytes.chunks_exact(2).flat_map(|b| i32::from(u16::from_le_bytes([b[0], b[1]])).to_le_bytes());
                (DType::I32, wide.collect())
            }
            Element::U64 => {
                for b in bytes.chunks_exact(8) {
                    let value = u64::from_le_bytes(b.try_into().expect("chunks of eight bytes"));
                    if i64::try_from(value).is_err() {
                        return Err(ArrayErrorKind::TooLarge { value });
                    }
                }
                (DType::I64, bytes)
            }
            Element::Other(dtype) => return Err(ArrayErrorKind::Element { dtype: dtype.clone() }),
        })
    }
}

fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> Result<(), ArrayErrorKind> {
    reader.read_exact(buffer).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged("it ends within the header"),
        _ => ArrayErrorKind::Io(e),
    })
}

/// Column-major bytes in row-major order.
fn to_row_major(bytes: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0usize; shape.len()];
    let mut strides = vec![size; shape.len()];
    for d in 1..shape.len() {
        strides[d] = strides[d - 1] * shape[d - 1];
    }
    while out.len() < bytes.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        out.extend_from_slice(&bytes[at..at + size]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    out
}

fn parse_header(text: &str) -> Option<Header> {
    let body = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let descr = value_of(body, "descr")?;
    let fortran = match value_of(body, "fortran_order")? {
        v if v.starts_with("True") => true,
        v if v.starts_with("False") => false,
        _ => return None,
    };
    let shape = value_of(body, "shape")?.strip_prefix('(')?;
    let shape = shape[..shape.find(')')?]
        .split(',')
        .map(|s| s.trim().trim_end_matches('L'))
        .filter(|s| !s.is_empty())
        .map(|s| s.parse::<usize>().ok())
        .collect::<Option<Vec<_>>>()?;
    let quoted = descr.strip_prefix(['\'', '"']).and_then(|d| d.split(['\'', '"']).next());
    let (element, big_endian) = match quoted {
        Some(d) => element_of(d),
        None => (Element::Other("a record".to_string()), false),
    };
    Some(Header { element, big_endian, fortran, shape })
}

/// The text after `'key':` in a dict literal.
fn value_of<'t>(body: &'t str, key: &str) -> Option<&'t str> {
    let at = body.find(&format!("'{key}'")).or_else(|| body.find(&format!("\"{key}\"")))?;
    Some(body[at + key.len() + 2..].trim_start().strip_prefix(':')?.trim_start())
}

fn element_of(descr: &str) -> (Element, bool) {
    let big = descr.starts_with('>');
    let element = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "b1" | "?" => Element::Plain(DType::Bool),
        "i1" => Element::Plain(DType::I8),
        "i2" => Element::Plain(DType::I16),
        "i4" => Element::Plain(DType::I32),
        "i8" => Element::Plain(DType::I64),
        "u1" => Element::Plain(DType::U8),
        "u2" => Element::U16,
        "u4" => Element::Plain(DType::U32),
        "u8" => Element::U64,
        "f2" => Element::Plain(DType::F16),
        "f4" => Element::Plain(DType::F32),
        "f8" => Element::Plain(DType::F64),
        // ml_dtypes writes bfloat16 as two opaque bytes.
        "V2" | "bfloat16" => Element::Plain(DType::BF16),
        _ => Element::Other(descr.to_string()),
    };
    (element, big)
}

/// The bytes of a version 1 header, padded so that the data starts at a multiple of 64.
pub(crate) fn header_bytes(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let descr = match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U32 => "<u4",
        DType::F16 => "<f2",
        DType::BF16 => "<V2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
    };
    let dims: String = match shape {
        [one] => format!("{one},"),
        _ => shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend(u16::try_from(text.len()).expect("a shape's text is far below 64 KiB").to_le_bytes());
    out.extend(text.as_bytes());
    out
}
