//! What is compiled for, and what compiles.

use msdeform_cuda::{CodeStore, DeviceProps, DiskCache, Engine, driver_version};

use super::WarmError;

/// A GPU that is there, or the architecture of others.
#[derive(Debug)]
pub struct Target {
    /// The GPUs whose calls are looked at: the one, or those of the architecture.
    pub gpus: Vec<DeviceProps>,
    pub name: Option<String>,
    pub arch: String,
    code: Code,
}

#[derive(Debug)]
enum Code {
    OfGpu(Engine),
    Own(Box<CodeStore>),
}

impl Target {
    /// A GPU by its number, with the user's cache.
    pub fn of_gpu(ordinal: usize) -> Result<Self, WarmError> {
        let engine = Engine::new(ordinal).map_err(|error| WarmError::Gpu(Box::new(error)))?;
        let props = engine.context().props().clone();
        let (name, arch) = (Some(props.name.clone()), props.arch());
        Ok(Self { gpus: vec![props], name, arch, code: Code::OfGpu(engine) })
    }

    /// Any GPU of an architecture such as `sm_90`; none has to be there.
    pub fn of_architecture(name: &str, cache: DiskCache) -> Result<Self, WarmError> {
        // A compiler that the driver can follow, if this machine has one.
        let code = CodeStore::new(cache, driver_version().ok());
        Self::with_code(name, code)
    }

    pub fn with_code(name: &str, code: CodeStore) -> Result<Self, WarmError> {
        let gpus = DeviceProps::of_architecture(name);
        let Some(first) = gpus.first() else {
            let known = DeviceProps::architectures().collect();
            return Err(WarmError::UnknownArchitecture { name: name.to_owned(), known });
        };
        let arch = first.arch();
        Ok(Self { gpus, name: None, arch, code: Code::Own(Box::new(code)) })
    }

    pub fn code(&self) -> &CodeStore {
        match &self.code {
            Code::OfGpu(engine) => engine.code(),
            Code::Own(code) => code,
        }
    }
}
