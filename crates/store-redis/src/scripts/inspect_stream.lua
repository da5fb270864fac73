-- KEYS: a stream. Returns its state.
return state(KEYS[1])
