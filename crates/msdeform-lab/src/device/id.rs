//! Devices by name.

use std::fmt;
use std::str::FromStr;

use msdeform::DeviceKind;

use super::{DeviceError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceId {
    Cpu,
    Cuda(usize),
}

impl DeviceId {
    pub const fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            Self::Cuda(_) => DeviceKind::Cuda,
        }
    }

    /// The default device: the first GPU if there is one, else the CPU.
    pub fn preferred() -> Self {
        match msdeform_cuda::device_count() {
            Ok(count) if count > 0 => Self::Cuda(0),
            _ => Self::Cpu,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceId {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self> {
        let unknown = || DeviceError::Unknown { name: name.to_owned() };
        match name {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                Ok(Self::Cuda(ordinal.parse().map_err(|_| unknown())?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip_and_typos_list_what_is_known() {
        for (name, id) in
            [("cpu", DeviceId::Cpu), ("cuda", DeviceId::Cuda(0)), ("cuda:3", DeviceId::Cuda(3))]
        {
            assert_eq!(name.parse::<DeviceId>().unwrap(), id);
        }
        for name in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            let message = name.parse::<DeviceId>().unwrap_err().to_string();
            assert!(message.contains("cuda:0") && message.contains("cpu"), "{message}");
        }
    }
}
