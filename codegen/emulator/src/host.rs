//! The host's reads and writes of device memory.

use std::sync::atomic::Ordering;

use crate::error::{FaultKind, HostError};
use crate::page::PAGE;
use crate::view::{View, pieces};

impl View {
    pub(crate) fn host_write(&mut self, address: u64, data: &[u8]) -> Result<(), HostError> {
        let bytes = data.len() as u64;
        let wrong = |kind| HostError { address, bytes, kind };
        if data.is_empty() {
            return Ok(());
        }
        let a = self.find(address, bytes, "host write").map_err(wrong)?;
        for (offset, range) in pieces(address - a.base, data.len()) {
            let (page, at, data) = (a.page(offset), (offset % PAGE) as usize, &data[range]);
            page.mark_range(at, data.len());
            page.forget(at, data.len());
            let head = data.len().min(at.next_multiple_of(4) - at);
            let (head, body) = data.split_at(head);
            let (body, tail) = body.split_at(body.len() / 4 * 4);
            let odd = |at: usize, bytes: &[u8]| {
                bytes.iter().enumerate().for_each(|(i, &b)| page.store(at + i, 1, u64::from(b), Ordering::Relaxed));
            };
            odd(at, head);
            odd(at + head.len() + body.len(), tail);
            for (word, v) in page.words[(at + head.len()) / 4..].iter().zip(body.chunks_exact(4)) {
                word.store(u32::from_le_bytes([v[0], v[1], v[2], v[3]]), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    pub(crate) fn host_read(&mut self, address: u64, out: &mut [u8]) -> Result<(), HostError> {
        let bytes = out.len() as u64;
        let wrong = |kind| HostError { address, bytes, kind };
        if out.is_empty() {
            return Ok(());
        }
        let a = self.find(address, bytes, "host read").map_err(wrong)?;
        for (offset, range) in pieces(address - a.base, out.len()) {
            let (at, out) = ((offset % PAGE) as usize, &mut out[range]);
            let page = a.existing(offset).filter(|p| p.range_is_set(at, out.len()));
            let page = page.ok_or_else(|| wrong(FaultKind::Uninitialised("device")))?;
            let head = out.len().min(at.next_multiple_of(4) - at);
            let (head, body) = out.split_at_mut(head);
            let after = at + head.len();
            let (body, tail) = body.split_at_mut(body.len() / 4 * 4);
            let odd = |at: usize, bytes: &mut [u8]| {
                bytes.iter_mut().enumerate().for_each(|(i, b)| *b = page.load(at + i, 1, Ordering::Relaxed) as u8);
            };
            odd(at, head);
            odd(after + body.len(), tail);
            for (word, v) in page.words[after / 4..].iter().zip(body.chunks_exact_mut(4)) {
                v.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        }
        Ok(())
    }
}
