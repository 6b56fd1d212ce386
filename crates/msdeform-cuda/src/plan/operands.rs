//! The tensors of a call in device memory.

use std::marker::PhantomData;

use msdeform::{Access, DType, Element, Role};

use crate::driver::{Context, DeviceBuffer};
use crate::variants::Call;

/// What a launch must be given for one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub role: Role,
    pub access: Access,
    /// Whether the call has it. A gradient that the caller did not request is a null pointer to the kernels.
    pub is_present: bool,
    /// From its first element to one past its last; 0 where the call has no such tensor.
    pub bytes: usize,
    pub element_bytes: usize,
}

impl Operand {
    /// Those of a call, in the order of the kernels' parameter.
    pub(super) fn of(call: &Call<'_>) -> impl Iterator<Item = Self> {
        call.operator().tensors(call.direction()).map(|(role, access)| {
            let is_present = call.has(role);
            let bytes = if is_present { call.extent(role) } else { 0 };
            let element_bytes = call.problem.format_of(role).size_bytes();
            Self { role, access, is_present, bytes, element_bytes }
        })
    }
}

/// Addresses of a call's tensors in device memory. Those that the call does not have are never looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    tensors: [u64; Role::COUNT],
    workspace: u64,
}

impl Pointers {
    /// With the address of a tensor: its first element, in the problem's layout or with the plan's strides.
    #[must_use]
    pub const fn with(mut self, role: Role, address: u64) -> Self {
        self.tensors[role.index()] = address;
        self
    }

    /// With a workspace, for plans that [do not own theirs](super::Workspace::OfCaller).
    #[must_use]
    pub const fn with_workspace(self, address: u64) -> Self {
        Self { workspace: address, ..self }
    }

    /// The address of a tensor; null if it was not given.
    #[must_use]
    pub const fn get(&self, role: Role) -> u64 {
        self.tensors[role.index()]
    }

    /// The address of the workspace; null if it was not given.
    #[must_use]
    pub const fn workspace(&self) -> u64 {
        self.workspace
    }
}

impl<const N: usize> From<[(Role, u64); N]> for Pointers {
    fn from(tensors: [(Role, u64); N]) -> Self {
        tensors.into_iter().fold(Self::default(), |all, (role, address)| all.with(role, address))
    }
}

/// A buffer of this crate as a tensor of a call.
#[derive(Debug)]
pub struct Argument<'a> {
    pub(super) role: Role,
    pub(super) access: Access,
    pub(super) dtype: DType,
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) context: &'a Context,
    /// Borrows a tensor that is written exclusively, for `'a`.
    buffer: PhantomData<&'a mut ()>,
}

impl<'a> Argument<'a> {
    /// A tensor that is read.
    #[must_use]
    pub fn read<T: Element>(role: Role, buffer: &'a DeviceBuffer<T>) -> Self {
        Self::new(role, Access::Read, buffer)
    }

    /// A tensor that is written.
    #[must_use]
    pub fn write<T: Element>(role: Role, buffer: &'a mut DeviceBuffer<T>) -> Self {
        Self::new(role, Access::Write, buffer)
    }

    fn new<T: Element>(role: Role, access: Access, buffer: &'a DeviceBuffer<T>) -> Self {
        Self {
            role,
            access,
            dtype: T::DTYPE,
            address: buffer.address(),
            bytes: buffer.bytes(),
            context: buffer.context(),
            buffer: PhantomData,
        }
    }
}
