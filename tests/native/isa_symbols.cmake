# Fails if an ISA's object exports anything except its table: an inline function compiled there with
# wide instructions could be linked in place of the baseline's copy.
foreach(object IN LISTS OBJECTS)
  if(object MATCHES "/isa/(scalar|neon|avx|amx|emulated)[a-z0-9_]*\\.cc\\.o$")
    execute_process(COMMAND ${NM} -C --defined-only --extern-only ${object}
      OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(STRIP "${symbols}" symbols)
    if(NOT symbols MATCHES "^[0-9a-f]+ T penstock::cpu::kernels_[a-z0-9_]+\\(\\)$")
      message(SEND_ERROR "${object} exports:\n${symbols}")
    endif()
  endif()
endforeach()
