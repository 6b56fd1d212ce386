//! Pointers and structs of the caller, looked at before they are believed.

use std::ptr::NonNull;

use crate::status::Failure;

/// The largest valid `struct_size`. A larger number is a mistake of the caller, not a newer struct.
const LARGEST_STRUCT: usize = 4096;

/// A struct that may get further fields at its end. The caller says in its first field how large it was when the program
/// was compiled; fields that are missing are zero, and zero always means what was there before the field.
///
/// # Safety
/// `repr(C)` with a `usize` first, without padding, and all bytes zero are a value of it.
pub(crate) unsafe trait Growing: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Bytes that its first version has.
    const FIRST_BYTES: usize;
}

/// Structs that may grow, each with the bytes of its first version.
macro_rules! growing {
    ($($struct:ident $first_bytes:expr;)*) => {$(
        // SAFETY: it is `repr(C)` with a `usize` first; the layout test of the header finds no padding; zero is a value of
        // every field.
        unsafe impl $crate::border::Growing for $struct {
            const NAME: &'static str = stringify!($struct);
            const FIRST_BYTES: usize = $first_bytes;
        }
    )*};
}
pub(crate) use growing;

pub(crate) fn aligned<T>(name: &'static str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_aligned() {
        return Ok(());
    }
    Err(Failure::Misaligned { name, address: pointer.addr(), alignment: align_of::<T>() })
}

/// Refuses null and misaligned pointers.
pub(crate) fn checked<T>(name: &'static str, pointer: *mut T) -> Result<NonNull<T>, Failure> {
    let found = NonNull::new(pointer).ok_or(Failure::NullPointer(name))?;
    aligned(name, pointer)?;
    Ok(found)
}

/// What a handle leads to.
///
/// # Safety
/// Unless it is null, the handle was made by this library and is not destroyed for `'a`.
pub(crate) unsafe fn handle<'a, T>(
    name: &'static str,
    pointer: *const T,
) -> Result<&'a T, Failure> {
    let pointer = checked(name, pointer.cast_mut())?;
    // SAFETY: not null, aligned; the caller answers for the rest.
    Ok(unsafe { pointer.as_ref() })
}

/// Makes a handle. What the caller has in `to` is null unless this succeeds.
///
/// # Safety
/// Unless it is null, `to` may be written.
pub(crate) unsafe fn hand_out<T>(
    to: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let to = checked("out", to)?;
    // SAFETY: not null and aligned; the caller answers for the rest.
    unsafe { to.write(std::ptr::null_mut()) };
    let made = Box::new(make()?);
    // SAFETY: as above.
    unsafe { to.write(Box::into_raw(made)) };
    Ok(())
}

/// Destroys a handle; null is allowed.
///
/// # Safety
/// Unless it is null, the handle was made by [`hand_out`] and is not used any more.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) {
    if !pointer.is_null() && pointer.is_aligned() {
        // SAFETY: a box made by `hand_out`, given back once.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// `count` elements of a list. The pointer is ignored if `count` is 0.
///
/// # Safety
/// Unless it is null, the pointer leads to `count` elements that live for `'a` and are not written to meanwhile.
pub(crate) unsafe fn list<'a, T>(
    name: &'static str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let pointer = checked(name, pointer.cast_mut())?;
    if count > isize::MAX.unsigned_abs() / size_of::<T>().max(1) {
        return Err(msdeform::Error::TooLarge { tensor: name }.into());
    }
    // SAFETY: not null, aligned, within the address space; the caller answers for the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), count) })
}

/// Reads a struct of the caller: as much of it as both sides know.
///
/// # Safety
/// Unless it is null, the pointer leads to as many bytes as its first field says, which are not written to meanwhile.
pub(crate) unsafe fn read<T: Growing>(pointer: *const T) -> Result<T, Failure> {
    let pointer = checked(T::NAME, pointer.cast_mut())?;
    // SAFETY: not null and aligned for `T`, whose first field this is.
    let found = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(found)?;
    let known = size_of::<T>();
    let bytes = pointer.cast::<u8>().as_ptr();
    for at in known..found {
        // SAFETY: the caller says that there are so many bytes.
        if unsafe { *bytes.add(at) } != 0 {
            return Err(Failure::NewerStruct { name: T::NAME, found, known });
        }
    }
    // SAFETY: all zero is a value of a growing struct. Bytes are copied, so that pointers among them stay pointers; both
    // sides have at least as many.
    unsafe {
        let mut copy = std::mem::zeroed::<T>();
        std::ptr::copy_nonoverlapping(bytes, (&raw mut copy).cast::<u8>(), found.min(known));
        Ok(copy)
    }
}

/// Reads a struct that may be left out; all zero where it is.
///
/// # Safety
/// As of [`read`].
pub(crate) unsafe fn read_or_zero<T: Growing>(pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        // SAFETY: all zero is a value of a growing struct.
        return Ok(unsafe { std::mem::zeroed() });
    }
    // SAFETY: passed on from the caller.
    unsafe { read(pointer) }
}

/// Writes a struct of the caller, of which `struct_bytes` are there: as much of it as both sides know, zeros behind it.
///
/// # Safety
/// Unless it is null, the pointer leads to `struct_bytes` bytes that are the calling thread's alone.
pub(crate) unsafe fn fill<T: Growing>(
    pointer: *mut T,
    struct_bytes: usize,
    content: &T,
) -> Result<(), Failure> {
    let pointer = checked(T::NAME, pointer)?;
    check_size::<T>(struct_bytes)?;
    let bytes = pointer.cast::<u8>().as_ptr();
    let known = size_of::<T>().min(struct_bytes);
    // SAFETY: the caller promises the bytes; the first field of the struct is a `usize`.
    unsafe {
        std::ptr::write_bytes(bytes, 0, struct_bytes);
        std::ptr::copy_nonoverlapping((&raw const *content).cast::<u8>(), bytes, known);
        pointer.cast::<usize>().write(struct_bytes);
    }
    Ok(())
}

/// Writes a struct whose first field says how large it is.
///
/// # Safety
/// As of [`fill`].
pub(crate) unsafe fn answer<T: Growing>(pointer: *mut T, content: &T) -> Result<(), Failure> {
    let checked = checked(T::NAME, pointer)?;
    // SAFETY: not null and aligned for `T`, whose first field this is.
    let struct_bytes = unsafe { checked.cast::<usize>().read() };
    // SAFETY: passed on from the caller.
    unsafe { fill(pointer, struct_bytes, content) }
}

fn check_size<T: Growing>(found: usize) -> Result<(), Failure> {
    if (T::FIRST_BYTES..=LARGEST_STRUCT).contains(&found) {
        return Ok(());
    }
    Err(Failure::StructSize { name: T::NAME, found })
}
