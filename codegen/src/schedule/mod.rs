//! Schedules: from what is computed to how.

mod loops;
mod nest;
mod rows;

#[cfg(test)]
mod tests;
