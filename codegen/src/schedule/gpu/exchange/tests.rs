//! Exchanges on two emulated devices.
