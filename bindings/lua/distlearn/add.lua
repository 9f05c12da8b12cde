-- The sum of two tensors or numbers, for the allReduce of trees that are not ours.
return function(a, b)
   if type(a) == 'number' then return a + b end
   return a:add(b)
end
